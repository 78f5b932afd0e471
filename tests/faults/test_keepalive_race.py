"""Replicas close idle connections whenever they like; no prompt may run twice because of it, and
hardly one may fail.

uvicorn closes after 5 s; the pool gives up its own connections before that.
"""

import asyncio
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.faults import closing
from tests.raw import CHAT, Client, Peer, Upstream, chat, ok, post, until
from tests.support import gateway, listener
from tokenlane.config.settings import HealthSettings, Settings, UpstreamSettings


@pytest.mark.row("U6")
def test_the_pool_gives_up_before_vllm_does() -> None:
    assert UpstreamSettings().idle_deadline_s < 5.0


async def test_connections_age_out_of_the_pool() -> None:
    settings = Settings(upstream=UpstreamSettings(idle_deadline_s=0.03))

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(ok())
        await peer.gone()

    async with Upstream(script) as upstream, gateway(upstream.url, settings=settings) as bench:
        client = await bench.client()
        assert (await client.ask(post(CHAT, chat()))).status == 200
        await asyncio.sleep(0.2)
        assert (await client.ask(post(CHAT, chat()))).status == 200
        assert len(upstream.peers) == 2
        await asyncio.sleep(0.15)
        bench.gateway.fleet.sweep()
        pool = bench.gateway.fleet[0].pool
        await until(lambda: pool.open_count == 0)


@pytest.mark.row("U6")
async def test_a_replica_that_closes_after_each_answer() -> None:
    """Without saying so: the close is seen before the connection is used again."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(ok())
        peer.close()

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(50):
            assert (await client.ask(post(CHAT, chat()))).status == 200
            await asyncio.sleep(0)
        assert len(upstream.asked) == 50


@pytest.mark.row("U6")
async def test_closes_at_random_moments_double_nothing() -> None:
    rng = random.Random(7)

    async def script(peer: Peer) -> None:
        for _ in range(rng.randrange(1, 4)):
            try:
                await peer.asked()
            except EOFError:
                return
            await peer.send(ok())
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        peer.reset() if rng.randrange(2) else peer.close()

    requests, statuses = 0, []
    async with Upstream(script) as one, Upstream(script) as other:
        async with gateway(one.url, other.url) as bench:

            async def client(number: int) -> None:
                nonlocal requests
                connection = await bench.client()
                for turn in range(50):
                    requests += 1
                    body = chat(f"{number}/{turn}")
                    statuses.append((await connection.ask(post(CHAT, body))).status)

            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(client(number))
            bodies = [asked.body for asked in (*one.asked, *other.asked)]
    assert len(bodies) == len(set(bodies))
    assert set(statuses) <= {200, 502}
    assert len(statuses) == requests == 200
    assert statuses.count(502) <= 60


TIMEOUT_S = 0.06


@pytest.mark.row("U6")
@pytest.mark.slow
@pytest.mark.long
async def test_closes_at_the_timeout_double_nothing(
    long: bool, figure: Callable[[str], None]
) -> None:
    """Bursts of requests on connections that are about as old as the replica lets them grow. The
    pool would give them up long before; here it is told that the replica keeps them."""
    requests = 100_000 if long else 640
    burst = 64
    draw = random.Random(6)
    statuses: Counter[bytes] = Counter()
    settings = Settings(health=HealthSettings(failure_limit_count=1_000_000_000))
    sock = listener()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    replica = await asyncio.create_subprocess_exec(
        *(sys.executable, closing.__file__, str(sock.fileno()), str(TIMEOUT_S)),
        pass_fds=[sock.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    sock.listen(256)
    sock.close()
    async with gateway(url, settings=settings) as bench:
        clients = [await bench.client() for _ in range(burst)]

        async def ask(client: Client, number: int) -> None:
            await client.send(post(CHAT, chat(), f"x-number: {number}\r\n"))
            head = await client.through(b"\r\n\r\n")
            statuses[head[9:12]] += 1
            [length] = re.findall(rb"content-length: (\d+)", head)
            await client.exactly(int(length))

        for first in range(0, requests, burst):
            numbers = range(first, min(first + burst, requests))
            await asyncio.gather(*map(ask, clients, numbers))
            await asyncio.sleep(draw.uniform(0.2, 1.0) * TIMEOUT_S)
    said = json.loads((await replica.communicate(b""))[0])
    assert statuses.keys() <= {b"200", b"502"}
    assert statuses.total() == requests
    assert said["times"].keys() == {"1"}, "a prompt ran twice"
    assert said["times"]["1"] >= statuses[b"200"]
    assert said["closed"] > 0
    met = statuses[b"502"]
    figure(
        f"{requests:,} requests, {said['closed']:,} connections closed at their timeout ± 1 ms, "
        f"0 double executions, {met:,} requests ({met / requests:.2%}) met the race"
    )
