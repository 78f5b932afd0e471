"""Clients leave at random moments, by the thousand: no lease stays, replicas are left at once.

`make disconnect` cuts 10,000 times and looks at the clock; without --long it looks at none.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import pytest

from tests.raw import CHAT, STREAM_HEAD, TOKEN, Client, Peer, Upstream, chat, chunk, ok, post, until
from tests.support import gateway
from tokenlane.telemetry.metrics import families

TASKS = 20
EVENTS = 4


class Moments:
    """A replica that answers each request in its own time, and notes when it was left while it
    did: `left` has the seconds by the request's number."""

    def __init__(self) -> None:
        self.left: dict[int, float] = {}
        self.asked: dict[int, float] = {}

    async def __call__(self, peer: Peer) -> None:
        while True:
            try:
                asked = await peer.asked()
            except (EOFError, ConnectionError):
                return
            [number] = map(int, asked.values(b"x-number"))
            self.asked[number] = time.monotonic()
            if not await self._answer(peer, streamed=b'"stream":true' in asked.body):
                self.left[number] = time.monotonic()
                return

    async def _answer(self, peer: Peer, *, streamed: bool) -> bool:
        """False if the gateway left within it."""
        pieces = [STREAM_HEAD, *[chunk(TOKEN)] * EVENTS, chunk(b"data: [DONE]\n\n") + chunk(b"")]
        if not streamed:
            whole = ok(b'{"choices":[]}' + b" " * 80_000)
            pieces = [whole[:20], whole[20:40_000], whole[40_000:]]
        for piece in pieces:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.002):
                        assert not await peer.more(), "a request within an answer"
                        return False
                await peer.send(piece)
            except ConnectionError:
                return False
        return True


@pytest.mark.row("T5")
@pytest.mark.slow
@pytest.mark.long
async def test_no_cut_leaks(long: bool, figure: Callable[[str], None]) -> None:
    cuts = 10_000 if long else 300
    draw = random.Random(11)
    replica = Moments()
    left_s: dict[int, float] = {}
    numbers = iter(range(cuts))
    async with Upstream(replica) as one, Upstream(replica) as other:
        async with gateway(one.url, other.url) as bench:

            async def leave(client: Client, number: int) -> None:
                await client.send(
                    post(CHAT, chat(stream=draw.random() < 0.7), f"x-number: {number}\r\n")
                )
                if draw.random() < 0.5:
                    # However busy the machine, half of them leave within an answer.
                    await client.more()
                await asyncio.sleep(draw.random() * 0.016)
                left_s[number] = time.monotonic()
                client.reset() if draw.random() < 0.5 else client.close()

            async def leaving() -> None:
                for number in numbers:
                    await leave(await bench.client(), number)
                    bench.clients.clear()

            async with asyncio.TaskGroup() as group:
                for _ in range(TASKS):
                    group.create_task(leaving())
            await until(lambda: not bench.server.connections)
            await until(lambda: bench.idle)
            # Every connection that was given up in use is known to its replica.
            pools = [bench.gateway.fleet[slot].pool for slot in range(2)]
            await until(lambda: all(pool.open_count == pool.idle_count for pool in pools))
            outcomes = bench.outcomes()
            assert not bench.gateway.router.health.troubled, "a client's leaving is no strike"
            struck = [bench.metric(families.EJECTIONS, url[7:]) for url in (one.url, other.url)]
            assert struck == [0, 0]
    gone = sum(count for (_, outcome), count in outcomes.items() if outcome == "client_gone")
    assert {outcome for _, outcome in outcomes} <= {"ok", "client_gone"}
    assert 0 < gone <= cuts
    delays_s = sorted(at - left_s[number] for number, at in replica.left.items())
    p99_ms = 1000 * delays_s[int(0.99 * len(delays_s))]
    figure(f"{cuts:,} cuts, {gone:,} of them in time, 0 leaked leases")
    if long:
        figure(f"the replica saw {len(delays_s):,} of them end, p99 after {p99_ms:.1f} ms")
        assert len(delays_s) > cuts / 10
        assert p99_ms < 100
