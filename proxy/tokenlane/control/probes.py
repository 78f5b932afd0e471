"""Health probes and scrapes of the replicas.

Invariants:
- No redirects, no cookies, no environment proxies, no decompression, bounded bodies: a replica
  cannot make the prober talk to anybody else or hold more than a few megabytes.
- Each probe begins on a connection of its own: a replica that no longer accepts is not up, however
  well its old connections work. What else is asked goes the same way, one behind the other.
- Nothing a replica answers raises out of `probe`.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import aiohttp
import msgspec

from tokenlane.config.keyring import replica_key
from tokenlane.config.secret import Secret
from tokenlane.config.settings import ControlSettings, Settings
from tokenlane.config.tls import upstream_context
from tokenlane.control.fleet_table import ADVICE, Probe
from tokenlane.control.replica_metrics import Scrape, parse_scrape
from tokenlane.control.waits import set_within
from tokenlane.errors import UNREADABLE
from tokenlane.runtime import descriptors

BODY_LIMIT_BYTES = 4 * 1024 * 1024
# Every worker looks through the names: a list with more or longer ones is not read. What is refused
# for that was read to its end before.
MODELS_LIMIT_COUNT = 4096
MODELS_LIMIT_BYTES = 1024 * 1024
NUDGE_GAP_S = 0.1
# A connection is kept for what the same probe asks next, and for no other probe.
_KEPT_S = 0.02
# Why a replica does not tokenize, where that is no status.
_WHY = {"timeout": "no answer in time", "protocol": "no answer that can be read"}

log = logging.getLogger("probes")


_T = TypeVar("_T")
_Name = Annotated[str, msgspec.Meta(max_length=1024)]


class _Card(msgspec.Struct):
    id: _Name
    max_model_len: Annotated[int, msgspec.Meta(le=2**53)] | None = None
    parent: _Name | None = None
    root: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    created: float = 0.0


class _ModelList(msgspec.Struct):
    data: Annotated[list[_Card], msgspec.Meta(max_length=MODELS_LIMIT_COUNT)]


class _Version(msgspec.Struct):
    version: Annotated[str, msgspec.Meta(max_length=256)] = ""


class _Answer(msgspec.Struct):
    tokens: list[int]
    # llama.cpp's server does not know `prompt`, and answers 200 with an empty list and no count.
    count: int


class ProbeFailed(Exception):
    """An answer cannot be had; why, as a key of ADVICE (fleet_table). status: of an answer that was
    none, else 0."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


def open_session(
    settings: ControlSettings, key: Secret | None = None, tls: ssl.SSLContext | None = None
) -> aiohttp.ClientSession:
    """The prober's HTTP client. key: shown to replicas. tls: for those on
    https. The caller closes it."""
    headers = {"User-Agent": "tokenlane-probe"}
    if key is not None:
        headers["Authorization"] = "Bearer " + key.reveal().decode("ascii")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=min(_KEPT_S, settings.probe_interval_s / 2),
            ttl_dns_cache=10,
            ssl=tls or True,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=settings.probe_deadline_s),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Accept-Encoding",),
        headers=headers,
    )


def session_of(settings: Settings) -> aiohttp.ClientSession:
    """As `open_session`, with the key and certificates that the settings name. Raises
    ConfigError."""
    upstream = settings.upstream
    return open_session(settings.control, replica_key(upstream), upstream_context(upstream))


async def body_of(
    session: aiohttp.ClientSession,
    url: str,
    limit_bytes: int = BODY_LIMIT_BYTES,
    question: object = None,
) -> bytes:
    """Return the body of a 200. Raise ProbeFailed otherwise. question: what is posted as JSON."""
    method = "GET" if question is None else "POST"
    try:
        async with session.request(method, url, json=question, allow_redirects=False) as response:
            if response.status != 200:
                raise ProbeFailed("status", response.status)
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > limit_bytes:
                    raise ProbeFailed("protocol")
            return bytes(body)
    except TimeoutError:
        raise ProbeFailed("timeout") from None
    except (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError):
        raise ProbeFailed("tls") from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, ConnectionRefusedError):
            raise ProbeFailed("refused") from None
        lacking = descriptors.are_lacking(error.os_error)
        raise ProbeFailed("descriptors" if lacking else "unreachable") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise ProbeFailed("protocol") from None


async def _said(
    session: aiohttp.ClientSession, url: str, kind: type[_T], limit_bytes: int = BODY_LIMIT_BYTES
) -> _T | None:
    """Return what an answer says; None where it cannot be read."""
    try:
        return msgspec.json.decode(await body_of(session, url, limit_bytes), type=kind)
    except (ProbeFailed, *UNREADABLE):
        return None


async def _scrape(session: aiohttp.ClientSession, url: str) -> Scrape | None:
    try:
        page = await body_of(session, f"{url}/metrics")
    except ProbeFailed:
        return None
    return parse_scrape(page.decode("utf-8", "replace"), time.monotonic())


async def probe(session: aiohttp.ClientSession, url: str) -> Probe:
    """One look at a replica: its health first, and if that is good what else it says."""
    try:
        await body_of(session, f"{url}/health")
    except ProbeFailed as failed:
        return Probe(str(failed), status=failed.status)
    listed = await _said(session, f"{url}/v1/models", _ModelList, MODELS_LIMIT_BYTES)
    scrape = await _scrape(session, url)
    # Another version is a sign of another process, which a start that is told shows anyway.
    tells_start = scrape is not None and scrape.started_s
    about = None if tells_start else await _said(session, f"{url}/version", _Version)
    version = about.version if about is not None else ""
    if listed is None:
        return Probe("ok", scrape=scrape, version=version)
    cards = listed.data
    limits = [one for card in cards if (one := card.max_model_len) and one > 0]
    return Probe(
        "ok",
        models=tuple(card.id for card in cards),
        adapters={card.id: card.parent for card in cards if card.parent is not None},
        max_model_tokens=min(limits, default=None),
        scrape=scrape,
        roots={card.id: card.root for card in cards if card.root and card.parent is None},
        at_s=time.monotonic() if any(card.created for card in cards) else 0.0,
        version=version,
        created_s=min((card.created for card in cards), default=0.0),
    )


async def tokenizes(session: aiohttp.ClientSession, url: str, model: str) -> str:
    """Asks a replica for the ids of a word; an empty text if it says them, else why it does not."""
    try:
        question = {"model": model, "prompt": "Hello"}
        told = await body_of(session, f"{url}/tokenize", question=question)
        msgspec.json.decode(told, type=_Answer)
    except ProbeFailed as failed:
        if failed.status:
            return f"status {failed.status}"
        return _WHY.get(str(failed), "no connection")
    except UNREADABLE:
        return _WHY["protocol"]
    return ""


class _Target:
    """A replica that is probed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.nudge = asyncio.Event()
        self.seen = False
        self.task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class Prober:
    """Probes every replica, each on its own clock. `on_probe(slot, result)` runs on the loop.
    Replicas come and go by `add` and `remove`."""

    settings: ControlSettings
    on_probe: Callable[[int, Probe], None]
    key: Secret | None = None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._targets: dict[int, _Target] = {}
        self._group: asyncio.TaskGroup | None = None
        self._session: aiohttp.ClientSession | None = None
        self.first_round = asyncio.Event()
        self._lacking = False

    async def run(self) -> None:
        """Probes until cancelled. `first_round` is set once every replica was looked at."""
        self._session = open_session(self.settings, self.key, self.tls)
        try:
            async with asyncio.TaskGroup() as self._group:
                for slot in self._targets:
                    self._begin(slot)
                self._look()
                # A fleet may be empty for a while.
                await asyncio.get_running_loop().create_future()
        finally:
            await self._session.close()

    def add(self, slot: int, url: str) -> None:
        """Probes this one too."""
        self._targets[slot] = _Target(url)
        if self._group is not None:
            self._begin(slot)

    def remove(self, slot: int) -> None:
        """Probes this one no more."""
        gone = self._targets.pop(slot, None)
        if gone is not None and gone.task is not None:
            gone.task.cancel()
        self._look()

    def configure(
        self, settings: ControlSettings, key: Secret | None, tls: ssl.SSLContext | None
    ) -> None:
        """From the next probes on."""
        self.settings, self.key, self.tls = settings, key, tls
        if self._session is not None and self._group is not None:
            self._group.create_task(self._retire(self._session, settings.probe_deadline_s))
            self._session = open_session(settings, key, tls)

    def session(self) -> aiohttp.ClientSession:
        """Return the client that asks now. Only while `run` runs; it closes it."""
        assert self._session is not None
        return self._session

    def nudge(self, slot: int) -> None:
        """Probes this replica soon: somebody could not reach it."""
        target = self._targets.get(slot)
        if target is not None:
            target.nudge.set()

    def _begin(self, slot: int) -> None:
        assert self._group is not None
        target = self._targets[slot]
        target.task = self._group.create_task(self._watch(slot, target), name=f"probe-{slot}")

    def _look(self) -> None:
        if self._group is not None and all(target.seen for target in self._targets.values()):
            self.first_round.set()

    @staticmethod
    async def _retire(session: aiohttp.ClientSession, after_s: float) -> None:
        """Closes a session when what it was asked for has come."""
        try:
            await asyncio.sleep(after_s)
        finally:
            await session.close()

    async def _probe(self, url: str) -> Probe:
        try:
            found = await probe(self.session(), url)
            lacked, self._lacking = self._lacking, found.reason == "descriptors"
            if self._lacking and not lacked:
                log.warning("no replica can be probed: %s", ADVICE["descriptors"])
            return found
        except Exception:
            # One replica must not end the probes of the others.
            log.exception("probing %s failed unexpectedly", url)
            return Probe("protocol")

    async def _watch(self, slot: int, target: _Target) -> None:
        while True:
            target.nudge.clear()
            self.on_probe(slot, await self._probe(target.url))
            target.seen = True
            self._look()
            # Nudges from a busy gateway come by the thousand.
            gap_s = min(NUDGE_GAP_S, self.settings.probe_interval_s)
            await asyncio.sleep(gap_s)
            await set_within(target.nudge, self.settings.probe_interval_s - gap_s)
