"""KV events end to end over real sockets: a simulated fleet publishes, a worker's truth follows."""

import asyncio
import time
from array import array
from random import Random

import pytest
from aiohttp import web

from tests.control.kv_events.publisher import BLOCK, Follower, scene, until
from tests.simulator.client import TEXT, Client
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings
from tokenlane.control.kv_events import subscribers
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.subscribers import KvEvents
from tokenlane.control.probes import open_session
from tokenlane.fleet_state import FleetState, ReplicaState, Standing
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.keys import salt_of


def ids(name: int, tokens: int) -> list[int]:
    return [1 + name] * tokens


async def test_what_is_computed_is_known_and_what_is_cleared_is_not() -> None:
    async with scene() as it:
        await it.send(0, ids(1, 100))
        await it.send(0, ids(1, 100), "salted")
        await until(lambda: len(it.follower.held(0)) == 12)
        assert it.equal()
        assert it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE
        began_s = time.monotonic()
        it.fleet.replicas[0].drive.clear_cache()
        await until(lambda: not it.follower.held(0))
        assert it.follower.changes[-1].forget
        assert time.monotonic() - began_s < 5.0  # in earnest a few ms


async def test_an_adapters_blocks_are_its_own() -> None:
    prompt = ids(1, 96)
    packed = array("I", prompt).tobytes()

    def ours(model: str) -> set[int]:
        return set(memoryview(block_hashes(packed, BLOCK, salt_of(model, ""))).cast("Q"))

    async with scene() as it:
        it.fleet.replicas[0].adapters["sql"] = "/adapters/sql"
        client = it.clients[0] = await Client.connect(it.fleet.replicas[0].url)
        for cached in (0, 80):
            client.send(TEXT, {"model": "sql", "prompt": prompt, "max_tokens": 1})
            usage = (await client.answer()).json["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == cached
        await until(lambda: len(it.follower.held(0)) == 6)
        assert it.follower.held(0) == ours("sql")
        await it.send(0, prompt)
        await until(lambda: it.follower.held(0) == ours("sql") | ours("demo"))


async def test_what_was_stored_before_anybody_listened_is_asked_for() -> None:
    async with scene() as it:
        it.states[0] = it.states[0].__class__(id="x", slot=0, url=it.states[0].url)
        await it.send(0, ids(1, 200))
        it.change(0, up=True, models=("demo",), block_tokens=BLOCK)
        await until(lambda: len(it.follower.held(0)) == 12)
        assert it.equal()


async def test_generated_blocks_are_known_too() -> None:
    async with scene(cache_generated=True) as it:
        await it.send(0, ids(1, 31))
        client = it.clients[0]
        client.send("/v1/completions", {"prompt": ids(1, 31), "max_tokens": 40})
        assert (await client.answer()).status == 200
        await until(lambda: len(it.follower.held(0)) == 4)


async def test_a_new_worker_is_told_everything_and_a_slow_one_later() -> None:
    async with scene(2) as it:
        await it.send(0, ids(1, 100))
        await it.send(1, ids(2, 50))
        await until(it.equal)
        late, slow = Follower(), Follower()
        slow.behind = True
        it.ends += [late, slow]
        await until(lambda: late.held(0) == it.cached(0) and late.held(1) == it.cached(1))
        assert slow.changes == []
        await it.send(0, ids(3, 64))
        slow.behind = False
        await until(lambda: slow.held(0) == it.cached(0) and slow.held(1) == it.cached(1))
        assert all(one.truth.standing(0, BLOCK) is Standing.COMPLETE for one in (late, slow))


async def test_a_replica_without_events_is_left_alone() -> None:
    async with scene(spelling="off") as it:
        await it.send(0, ids(1, 100))
        assert it.kv.accounts == []
        it.kv.update()
        assert list(it.kv.samples()) == []


async def test_a_process_that_is_gone_has_nothing_and_the_next_one_is_followed() -> None:
    async with scene() as it:
        await it.send(0, ids(1, 160))
        await until(lambda: len(it.follower.held(0)) == 10)
        replica = it.fleet.replicas[0]
        publisher = replica.publisher
        assert publisher is not None
        await publisher.stop()
        it.kv.gone(0)
        await until(lambda: not it.follower.held(0))
        assert it.follower.truth.standing(0, BLOCK) is Standing.NONE
        publisher.start()
        replica.drive.clear_cache()
        await it.send(0, ids(2, 80))
        it.change(0, started_s=2.0)
        await until(lambda: len(it.follower.held(0)) == 5)
        assert it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE


@pytest.mark.parametrize("spelling", ["maps", "arrays"])
async def test_both_tiers_of_a_replica_that_offloads_are_known(spelling: str) -> None:
    random = Random(6)
    async with scene(1, spelling, cache_blocks=60, host_cache_blocks=150) as it:
        found = set()
        for _ in range(300):
            name = random.randrange(30)
            found.add(await it.send(0, ids(name, 16 * (1 + name % 12)), "ab"[name % 2]))
        await until(it.equal)
        engine = it.fleet.replicas[0].drive.engine
        assert engine.host_cache is not None
        assert min(engine.cache.evicted_blocks, engine.host_cache.evicted_blocks) > 100
        assert len(it.follower.held(0, Medium.HOST)) > len(it.follower.held(0)) > 40
        (account,) = it.kv.accounts
        assert (account.events["unread"], account.ledger.orphans) == (0, 0)
        beyond = it.follower.held(0, Medium.HOST) - it.follower.held(0)
        assert len(beyond) > 50


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["maps", "arrays"])
async def test_after_3000_requests_with_evictions_the_index_equals_the_caches(
    spelling: str,
) -> None:
    """1,500 conversations' turns over 2 caches of 400 blocks, a third of them salted."""
    random = Random(5)
    async with scene(2, spelling, cache_blocks=400) as it:
        for number in range(1500):
            name = int(random.paretovariate(0.8)) % 300
            prompt = [1 + name] * 64 + [301 + random.randrange(4)] * random.randrange(200)
            salt = "ab"[name % 2] if name % 3 == 0 else ""
            for slot in (0, 1):
                await it.send(slot, prompt if slot else prompt[::-1], salt)
            if number % 500 == 250:
                await until(it.equal)
        await until(it.equal)
        evicted = [stats.evicted_blocks for stats in it.fleet.stats()]
        assert min(evicted) > 1000
        assert [len(it.follower.held(slot)) for slot in (0, 1)] == [
            len(it.cached(slot)) for slot in (0, 1)
        ]
        assert min(len(it.follower.held(slot)) for slot in (0, 1)) > 300
        for account in it.kv.accounts:
            assert account.events["BlockStored"] > 500
            assert account.events["unread"] == 0
            assert account.lost_messages == 0


async def test_a_replica_is_asked_with_the_client_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribers, "ASK_AGAIN_S", 0.01)
    shown: list[str] = []

    async def asked(request: web.Request) -> web.Response:
        shown.append(request.headers["Authorization"])
        return web.Response(status=500)

    app = web.Application()
    app.router.add_get("/kv_event_sources", asked)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    state = ReplicaState(id="r", slot=0, url=url, up=True, models=("demo",), block_tokens=BLOCK)
    kv = KvEvents(Settings(), lambda: FleetState(1, (state,)), list)
    sessions = [open_session(Settings().control, Secret(key)) for key in (b"old", b"new")]
    task = asyncio.get_running_loop().create_task(kv.run(lambda: sessions[0]))
    await until(lambda: "Bearer old" in shown)
    sessions.reverse()  # as a reload does
    await until(lambda: "Bearer new" in shown)
    task.cancel()
    await asyncio.wait([task])
    for session in sessions:
        await session.close()
    await runner.cleanup()
