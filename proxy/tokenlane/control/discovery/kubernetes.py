"""The Kubernetes API: the endpoint slices of a service, listed once and then watched.

Invariants:
- A watch begins where the list ended, and is resumed where it was cut, by `resourceVersion`;
  bookmarks keep that young. Where the server no longer has that version (410), everything is listed
  again.
- What cannot be had keeps the replicas as they were, and is tried again with growing pauses.
- The token is read again for each request: Kubernetes replaces it while we run. So it does with the
  CA: where the server's certificate is not believed, this source ends, to be made anew.
"""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from tokenlane.config.settings import DiscoverySettings
from tokenlane.control.discovery.endpoint_slices import Event, Listed, Slice, Status, backends
from tokenlane.errors import UNREADABLE, ConfigError

PAGE_LIMIT = 500
WATCH_S = 290
# Of one line: a slice has at most 1000 endpoints.
LINE_LIMIT_BYTES = 8 * 1024 * 1024
FIRST_PAUSE_S = 0.2
LAST_PAUSE_S = 10.0
_NAMESPACE_FILE = "namespace"

Want = Callable[[Iterable[str] | None], object]

log = logging.getLogger("discovery")

_listed = msgspec.json.Decoder(Listed).decode
_event = msgspec.json.Decoder(Event).decode
_slice = msgspec.json.Decoder(Slice).decode
_status = msgspec.json.Decoder(Status).decode


class _Gone(Exception):
    """The server has forgotten what it was asked to go on from."""


class _Failed(Exception):
    """Why, in a few words."""


class ServiceAddress(NamedTuple):
    """Which one. port: name or number; empty: the first one."""

    namespace: str
    name: str
    scheme: str
    port: str


def service(settings: DiscoverySettings) -> ServiceAddress:
    """Raises ConfigError."""
    namespace, slash, name = settings.kubernetes_service.rpartition("/")
    if not slash:
        file = Path(settings.kubernetes_token_file).with_name(_NAMESPACE_FILE)
        try:
            namespace = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(
                f"discovery.kubernetes_service: {name!r} needs its namespace, as NAMESPACE/{name}:"
                f" there is no {file}"
            ) from None
    if not namespace or not name or "/" in namespace:
        raise ConfigError("discovery.kubernetes_service: must look like NAMESPACE/SERVICE")
    return ServiceAddress(namespace, name, settings.kubernetes_scheme, settings.kubernetes_port)


def _tls(settings: DiscoverySettings) -> ssl.SSLContext | bool:
    if not settings.kubernetes_url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=settings.kubernetes_ca_file or None)
    except OSError as error:
        raise ConfigError(
            f"discovery.kubernetes_ca_file: {settings.kubernetes_ca_file} cannot be used ({error})"
        ) from None


class Kubernetes:
    """One service. Raises ConfigError."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self._service = service(settings)
        self._tls = _tls(settings)
        self._token_file = settings.kubernetes_token_file
        base = settings.kubernetes_url.rstrip("/")
        self._url = (
            f"{base}/apis/discovery.k8s.io/v1/namespaces/{self._service.namespace}/endpointslices"
        )
        self._slices: dict[str, Slice] = {}
        self._version = ""
        self._want: Want = lambda _: None

    async def run(self, want: Want) -> None:
        """Until cancelled. Raises ConfigError where the server's certificate is not believed."""
        self._want = want
        pause_s = FIRST_PAUSE_S
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=WATCH_S + 30.0),
            trust_env=False,
            read_bufsize=LINE_LIMIT_BYTES,
        ) as session:
            while True:
                began_s = time.monotonic()
                try:
                    if not self._version:
                        await self._list(session)
                    await self._watch(session)
                except _Gone:
                    log.info("the Kubernetes API no longer has this version; listing again")
                    self._version = ""
                except aiohttp.ClientSSLError as error:
                    want(None)
                    hint = "is its CA in discovery.kubernetes_ca_file?"
                    raise ConfigError(f"no TLS with the Kubernetes API: {error}; {hint}") from None
                except (
                    _Failed, aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE
                ) as error:  # fmt: skip
                    want(None)
                    log.warning("the Kubernetes API does not answer: %s", str(error) or repr(error))
                # Also after a watch that ended: what stands before the API may end all at once.
                if time.monotonic() - began_s > LAST_PAUSE_S:
                    pause_s = FIRST_PAUSE_S
                await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
                pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _tell(self) -> None:
        _, _, scheme, port = self._service
        self._want(backends(self._slices.values(), scheme, port))

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, **query: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Accept": "application/json", "User-Agent": "tokenlane"}
        if self._token_file:
            token = await asyncio.to_thread(Path(self._token_file).read_text, encoding="ascii")
            headers["Authorization"] = f"Bearer {token.strip()}"
        query["labelSelector"] = f"kubernetes.io/service-name={self._service.name}"
        async with session.get(
            self._url, params=query, headers=headers, allow_redirects=False
        ) as response:
            if response.status == 410:
                raise _Gone
            if response.status != 200:
                hint = {401: "is the token good?", 403: "may its service account list and watch"
                    " endpointslices?"}.get(response.status, "")  # fmt: skip
                raise _Failed(f"status {response.status}; {hint}".rstrip("; "))
            yield response

    async def _list(self, session: aiohttp.ClientSession) -> None:
        found: dict[str, Slice] = {}
        query = {"limit": str(PAGE_LIMIT)}
        while True:
            async with asyncio.timeout(30.0), self._get(session, **query) as response:
                page = _listed(await response.read())
            found.update({one.metadata.name: one for one in page.items or ()})
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._slices, self._version = found, page.metadata.resource_version
        self._tell()

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Until the server ends it, which it does every few minutes."""
        async with self._get(
            session,
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(WATCH_S),
        ) as response:
            async for line in response.content:
                if line.strip():
                    self._take(_event(line))

    def _take(self, event: Event) -> None:
        if event.type == "ERROR":
            status = _status(event.object)
            if status.code == 410:
                raise _Gone
            raise _Failed(f"the watch ended with {status.code}: {status.message}")
        one = _slice(event.object)
        self._version = one.metadata.resource_version or self._version
        if event.type == "BOOKMARK":
            return
        if event.type == "DELETED":
            self._slices.pop(one.metadata.name, None)
        else:
            self._slices[one.metadata.name] = one
        self._tell()
