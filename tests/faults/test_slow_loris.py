"""Connections that say nothing or crawl: each ends at its deadline, others do not feel them."""

import asyncio
from collections.abc import Callable

import pytest

from tests.raw import CHAT, TEXT, Client, Upstream, answering, chat, ok, post
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings

DEADLINE_S = 1.0
SETTINGS = Settings(
    server=ServerSettings(
        idle_deadline_s=DEADLINE_S, head_deadline_s=DEADLINE_S, body_deadline_s=DEADLINE_S
    )
)
BEGUN = (b"", b"POST /v1", post(CHAT, chat())[:60], post(TEXT, chat())[:-5])


async def _ended(client: Client) -> bytes:
    """What it was told before its end: nothing, or a 408."""
    return (await client.rest())[:12]


@pytest.mark.row("T1", "T2")
@pytest.mark.slow
@pytest.mark.long
async def test_they_end_and_others_are_served(long: bool, figure: Callable[[str], None]) -> None:
    crowd = 1000 if long else 100
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            slow = [await bench.client() for _ in range(crowd)]
            for number, client in enumerate(slow):
                await client.send(BEGUN[number % len(BEGUN)])
            asking = await bench.client()
            answers = [(await asking.ask(post(CHAT, chat()))).status for _ in range(50)]
            assert answers == [200] * 50
            told = await asyncio.gather(*map(_ended, slow))
            assert {word for word in told if word} == {b"HTTP/1.1 408"}
            assert sum(not word for word in told) >= crowd // len(BEGUN)
            assert len(upstream.asked) == 50
    figure(f"{crowd:,} crawling connections, all ended by their deadline, 50 of 50 others served")
