"""Health probes and scrapes of the replicas, each on a connection of its own.

Invariants:
- No redirects, no cookies, no environment proxies, no decompression, bounded bodies: a replica
  cannot make the prober talk to anybody else or hold more than a few megabytes.
- A fresh connection each time: a replica that no longer accepts is not up, however well its old
  connections work.
- Nothing a replica answers raises out of `probe`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from proxy.control.fleet import Probe
from proxy.control.scrape import Scrape, parse_scrape
from proxy.secret import Secret
from proxy.settings import ControlSettings

BODY_LIMIT_BYTES = 4 * 1024 * 1024
NUDGE_GAP_S = 0.1

log = logging.getLogger("probes")


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_Card]


class _ProbeFailed(Exception):
    """Why, as a word of PROBE_REASONS."""


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
            limit=0, force_close=True, ttl_dns_cache=10, ssl=tls or True
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=settings.probe_deadline_s),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Accept-Encoding",),
        headers=headers,
    )


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    """The body of a 200. _ProbeFailed otherwise."""
    try:
        async with session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise _ProbeFailed("status")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    raise _ProbeFailed("protocol")
            return bytes(body)
    except TimeoutError:
        raise _ProbeFailed("timeout") from None
    except aiohttp.ClientConnectorError:
        raise _ProbeFailed("refused") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise _ProbeFailed("protocol") from None


async def _models(session: aiohttp.ClientSession, url: str) -> list[_Card] | None:
    try:
        return msgspec.json.decode(await _get(session, f"{url}/v1/models"), type=_ModelList).data
    except (_ProbeFailed, msgspec.DecodeError, UnicodeDecodeError):
        return None


async def _scrape(session: aiohttp.ClientSession, url: str) -> Scrape | None:
    try:
        page = await _get(session, f"{url}/metrics")
    except _ProbeFailed:
        return None
    return parse_scrape(page.decode("utf-8", "replace"))


async def probe(session: aiohttp.ClientSession, url: str) -> Probe:
    """One look at a replica: its health first, and if that is good its models and metrics."""
    try:
        await _get(session, f"{url}/health")
    except _ProbeFailed as failed:
        return Probe(str(failed))
    cards, scrape = await asyncio.gather(_models(session, url), _scrape(session, url))
    if cards is None:
        return Probe("ok", scrape=scrape)
    limits = [card.max_model_len for card in cards if card.max_model_len]
    return Probe(
        "ok",
        models=tuple(card.id for card in cards),
        adapters=tuple(card.id for card in cards if card.parent is not None),
        max_model_tokens=min(limits, default=None),
        scrape=scrape,
        roots={card.id: card.root for card in cards if card.root},
    )


class Prober:
    """Probes every replica, each on its own clock. `on_probe(slot, result)` runs on the loop."""

    def __init__(
        self,
        urls: Sequence[str],
        settings: ControlSettings,
        on_probe: Callable[[int, Probe], None],
        key: Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._key, self._tls = key, tls
        self._urls = urls
        self._settings = settings
        self._on_probe = on_probe
        self._nudges = [asyncio.Event() for _ in urls]
        self._seen: set[int] = set()
        self.first_round = asyncio.Event()

    async def run(self) -> None:
        """Probes until cancelled. `first_round` is set once every replica was looked at."""
        if not self._urls:
            self.first_round.set()
        async with (
            open_session(self._settings, self._key, self._tls) as session,
            asyncio.TaskGroup() as group,
        ):
            for slot, url in enumerate(self._urls):
                group.create_task(self._watch(session, slot, url), name=f"probe-{slot}")

    def nudge(self, slot: int) -> None:
        """Probes this replica soon: somebody could not reach it."""
        if 0 <= slot < len(self._nudges):
            self._nudges[slot].set()

    async def _watch(self, session: aiohttp.ClientSession, slot: int, url: str) -> None:
        nudge = self._nudges[slot]
        while True:
            nudge.clear()
            self._on_probe(slot, await probe(session, url))
            self._seen.add(slot)
            if len(self._seen) == len(self._urls):
                self.first_round.set()
            # Nudges from a busy gateway come by the thousand.
            gap_s = min(NUDGE_GAP_S, self._settings.probe_interval_s)
            await asyncio.sleep(gap_s)
            try:
                async with asyncio.timeout(self._settings.probe_interval_s - gap_s):
                    await nudge.wait()
            except TimeoutError:
                pass
