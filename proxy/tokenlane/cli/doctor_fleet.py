"""`tokenlane doctor`: the store that gateways share, and the gateways that are there.

Invariants:
- It reads; nothing is added to the store.
- A store that is away keeps no gateway from serving: it is a warning.
"""

import asyncio
import time
from collections.abc import Callable

from tokenlane import __version__
from tokenlane.config.settings import FleetSettings
from tokenlane.control.peers.peer_message import PeerMessage, decode
from tokenlane.control.peers.store_client import StoreClient, StoreError
from tokenlane.errors import ConfigError

# Gateways say their names once a second.
_LATELY_S = 3.0
_SKEW_S = 1.0

Say = Callable[[str], None]


def check_fleet(settings: FleetSettings, fine: Say, warn: Say) -> None:
    """Ask the store, and judge clocks and versions by what is in it."""
    if not settings.store:
        return
    try:
        began_s = time.monotonic()
        store_s, entries = asyncio.run(_look(settings))
        took_s = time.monotonic() - began_s
    except (StoreError, ConfigError) as error:
        warn(f"store: {error}; without it each gateway goes by its own load (fleet.store)")
        return
    fine(f"store: {settings.store} answers, connected in {took_s * 1e3:.0f} ms")
    judge(store_s, entries, time.time(), fine, warn)


def judge(
    store_s: float, entries: list[tuple[float, bytes]], now_s: float, fine: Say, warn: Say
) -> None:
    """Say what is to be said of the clocks and versions. entries: by the store's clock."""
    skews = {"this machine": now_s - store_s}
    lately = [(at_s, decode(data)) for at_s, data in entries if store_s - at_s < _LATELY_S]
    gateways: dict[str, PeerMessage] = {}
    for at_s, message in lately:
        if message is not None and message.whole:
            gateways[message.gateway] = message
            skews[message.name] = message.sent_s - at_s
    for who, skew_s in skews.items():
        if abs(skew_s) > _SKEW_S:
            way = "ahead of" if skew_s > 0 else "behind"
            warn(f"clocks: {who} is {abs(skew_s):.1f} s {way} the store; is NTP running there?")
    if not any(abs(skew_s) > _SKEW_S for skew_s in skews.values()):
        fine(f"clocks: within {max(map(abs, skews.values())):.2f} s of the store's")
    if any(message is None for _, message in lately):
        warn("gateways: some messages are of another format; upgrade the older ones soon")
    for message in gateways.values():
        if message.version != __version__:
            warn(f"gateways: {message.name} runs {message.version}, this is {__version__}")
    names = ", ".join(sorted(message.name for message in gateways.values())) or "none yet"
    fine(f"gateways: {names}")


async def _look(settings: FleetSettings) -> tuple[float, list[tuple[float, bytes]]]:
    client = StoreClient(settings)
    try:
        return await client.look()
    finally:
        await client.close()
