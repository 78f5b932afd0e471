"""The demo's clients, against real replicas."""

import asyncio

from tests.raw import until
from tests.simulator.conftest import FleetMaker
from tokenlane.simulator import clients


async def test_conversations_grow(make_fleet: FleetMaker) -> None:
    made = await make_fleet(1)
    [replica] = made.replicas
    ended = asyncio.Event()
    asking = asyncio.get_running_loop().create_task(
        clients.run(replica.url, ended, seed=1, pause_s=0.02)
    )
    # Every client asks, and an agent's second turn finds its first one in the cache.
    await until(lambda: replica.drive.engine.stats.counts.hit_tokens > 3_000)
    ended.set()
    await asking


async def test_no_client_gives_up(make_fleet: FleetMaker) -> None:
    made = await make_fleet(1, queue_limit=1, running_limit=1, prefill_tokens_per_s=50_000.0)
    [replica] = made.replicas
    ended = asyncio.Event()
    asking = asyncio.get_running_loop().create_task(
        clients.run(replica.url, ended, seed=1, pause_s=0.02)
    )
    await until(lambda: replica.drive.engine.stats.counts.rejected)
    await until(lambda: replica.drive.engine.stats.counts.sequences > 40)
    assert not asking.done()
    ended.set()
    await asking
