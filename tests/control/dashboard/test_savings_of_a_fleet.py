"""Tokens saved, as a gateway's page tells them and as its replicas count them."""

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec
import pytest

from tests.browser import LIMIT_S
from tests.control.dashboard.test_page import FLEETS, PACE, chat, gateway, killed
from tokenlane.control.dashboard.live import Live
from tokenlane.simulator.subprocess_fleet import FleetProcess


async def live_of(admin: str) -> Live:
    """What the page is told."""
    async with aiohttp.ClientSession(admin) as session, session.get("/live.json") as answer:
        return msgspec.json.decode(await answer.read(), type=Live)


async def until(admin: str, enough: Callable[[Live], bool]) -> Live:
    """Wait until what the page is told is enough, and return it."""
    async with asyncio.timeout(LIMIT_S):
        while not enough(live := await live_of(admin)):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)
    return live


async def hit_tokens() -> float:
    """The sum of what the replicas of all fleets found in their caches, by their own counters."""
    found = 0.0
    async with aiohttp.ClientSession() as session:
        for url in (url for fleet in FLEETS for url in fleet.urls):
            async with session.get(f"{url}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            counts = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
            found += sum(float(line.split()[-1]) for line in counts)
    return found


@pytest.mark.slow
async def test_tokens_saved_are_those_that_the_replicas_count() -> None:
    async with gateway([(*PACE, "--prefill-tokens-per-s", "2000")] * 2) as (data, admin, process):
        assert not (await live_of(admin)).saved.tokens
        for _ in range(6):
            await chat(data)
        theirs = await hit_tokens()
        assert theirs > 1000
        # The replicas are asked once a second.
        live = await until(admin, lambda live: live.saved.tokens == theirs)
        # Prefill takes a simulated replica half a millisecond a token.
        assert live.saved.prefill_s == pytest.approx(theirs / 2000, rel=0.2)
        # A replica that starts again counts from zero.
        (fleet, _), before = FLEETS, theirs
        port, lost = int(fleet.urls[0].rpartition(":")[2]), await hit_tokens()
        killed(f":{port}")
        FLEETS.pop(0)
        lost -= await hit_tokens()
        with FleetProcess(1, port, PACE) as again:
            FLEETS.append(again)
            await until(admin, lambda live: live.verdict.text.startswith("all 2 up"))
            for _ in range(6):
                await chat(data)
            theirs = lost + await hit_tokens()
            assert theirs > before
            await until(admin, lambda live: live.saved.tokens == theirs)
        process.terminate()
