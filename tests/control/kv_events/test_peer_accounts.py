"""A gateway that starts beside one that knows what caches hold, over real sockets."""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import msgspec
import pytest
from aiohttp import web

from tests.control.kv_events.publisher import BLOCK, QUICK, Follower, Scene, scene, until
from tests.control.kv_events.test_subscribers import ids
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.peer_accounts import PeerAccounts, account_route
from tokenlane.control.kv_events.subscribers import KvEvents
from tokenlane.control.probes import session_of
from tokenlane.fleet_state import FleetState, Standing
from tokenlane.simulator.engine import Sequence
from tokenlane.simulator.prefix_cache import chain


@asynccontextmanager
async def port(*routes: web.RouteDef) -> AsyncIterator[str]:
    """An admin port with these routes."""
    app = web.Application()
    app.router.add_routes(routes)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def joiner(it: Scene, known: PeerAccounts) -> AsyncIterator[Follower]:
    """Another gateway in front of the same replicas."""
    follower = Follower()
    kv = KvEvents(
        Settings(kv_events=QUICK),
        lambda: FleetState(1, tuple(it.states)),
        lambda: [follower],
        peers=known,
    )
    async with session_of(kv.settings) as session, asyncio.TaskGroup() as group:
        task = group.create_task(kv.run(lambda: session))
        try:
            yield follower
        finally:
            task.cancel()


def equal(it: Scene, follower: Follower) -> bool:
    """Whether it believes what the caches hold, and knows that this is all."""
    return all(
        follower.held(slot, medium) == it.cached(slot, medium)
        and follower.truth.standing(slot, BLOCK) is Standing.COMPLETE
        for slot in range(len(it.states))
        for medium in Medium
    )


async def keep(it: Scene, messages: int) -> None:
    """The first gateway hears all replicas, and from now on their replays reach back so far."""
    slots = range(len(it.states))
    standing = it.follower.truth.standing
    await until(lambda: all(standing(slot, BLOCK) is Standing.COMPLETE for slot in slots))
    for replica in it.fleet.replicas:
        assert replica.publisher is not None
        replica.publisher.kept = deque(maxlen=messages)


async def test_who_joins_late_knows_what_its_sibling_knows() -> None:
    async with scene(2, cache_blocks=100, host_cache_blocks=200) as it:
        await keep(it, 5)
        for name in range(60):
            await it.send(name % 2, ids(name, 100), "ab"[name % 2])
        await until(lambda: equal(it, it.follower))
        async with port(account_route(it.kv.account)) as url:
            nobody = "http://127.0.0.1:1"
            async with joiner(it, PeerAccounts(lambda: [nobody, url])) as late:
                await until(lambda: equal(it, late))
                for name in range(60, 80):
                    await it.send(name % 2, ids(name, 100))
                await until(lambda: equal(it, late))
            async with joiner(it, PeerAccounts()) as alone:
                await until(lambda: alone.truth.standing(0, BLOCK) is Standing.PARTIAL)
                assert len(alone.held(0)) < len(it.follower.held(0))


async def test_a_replica_that_restarted_meanwhile_is_believed_alone() -> None:
    async with scene() as it:
        await keep(it, 5)
        for name in range(20):
            await it.send(0, ids(name, 100))
        await until(lambda: equal(it, it.follower))
        account = it.kv.account(it.states[0].id, 0)
        assert account is not None
        old = msgspec.msgpack.encode(account.snapshot())
        publisher = it.fleet.replicas[0].publisher
        assert publisher is not None
        await publisher.stop()
        publisher.start()
        it.fleet.replicas[0].drive.clear_cache()
        await it.send(0, ids(1, 80))

        async def told(_: web.Request) -> web.Response:
            return web.Response(body=old)

        async with (
            port(web.get("/replicas/{id}/kv-account", told)) as url,
            joiner(it, PeerAccounts(lambda: [url])) as late,
        ):
            await until(lambda: len(late.held(0)) == 5 and equal(it, late))


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([b"", [9, 9], [{}, [], []]]),
        msgspec.msgpack.encode([b"", [9, 9], [{}, [], []], 0])[:-1] + b"\x91" * 3000 + b"\xc0",
    ],
)
async def test_what_is_of_no_use_is_not_waited_for(said: bytes) -> None:
    asked = []

    async def told(request: web.Request) -> web.Response:
        asked.append(request.path_qs)
        return web.Response(body=said)

    async with scene() as it:
        await it.send(0, ids(1, 200))
        async with (
            port(web.get("/replicas/{id}/kv-account", told)) as url,
            joiner(it, PeerAccounts(lambda: [url])) as late,
        ):
            await until(lambda: equal(it, late))
        assert asked == [f"/replicas/{it.states[0].id}/kv-account?rank=0"]


async def test_a_sibling_that_hangs_or_says_too_much_is_left() -> None:
    over = asyncio.Event()

    async def hanging(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async with scene() as it:
        await it.send(0, ids(1, 200))
        await until(lambda: equal(it, it.follower))
        async with port(web.get("/{_:.*}", hanging)) as url:
            async with joiner(it, PeerAccounts(lambda: [url], deadline_s=0.1)) as late:
                await until(lambda: equal(it, late))
            over.set()
        async with port(account_route(it.kv.account)) as url:
            async with joiner(it, PeerAccounts(lambda: [url], limit_bytes=10)) as late:
                await until(lambda: equal(it, late))


async def test_only_what_is_known_whole_is_told_and_the_token_is_shown() -> None:
    shown = []

    def find(replica_id: str, rank: int) -> PublisherAccount | None:
        return it.kv.account(replica_id, rank)

    async with scene(2) as it, port(account_route(find)) as url:
        await keep(it, 5)
        (one, _) = it.states
        async with aiohttp.ClientSession(url) as session:

            async def status(path: str) -> int:
                async with session.get(path) as response:
                    return response.status

            there = f"/replicas/{one.id}/kv-account"
            assert await status(there) == 404  # nothing has been heard yet
            await it.send(0, ids(1, 100))
            await until(lambda: len(it.follower.held(0)) == 6)
            assert await status(there) == await status(f"{there}?rank=0") == 200
            for other in ("/replicas/r/kv-account", f"{there}?rank=1", f"{there}?rank=x"):
                assert await status(other) == 404
            publisher = it.fleet.replicas[0].publisher
            assert publisher is not None
            publisher.lose = 20
            for name in range(20):
                await it.send(0, ids(name, 100))
            await it.send(0, ids(30, 100))
            await until(lambda: it.follower.truth.standing(0, BLOCK) is Standing.PARTIAL)
            assert await status(there) == 404

        async def noted(request: web.Request) -> web.Response:
            shown.append(request.headers.get("Authorization"))
            return web.Response(status=404)

        async with (
            port(web.get("/{_:.*}", noted)) as other_url,
            joiner(it, PeerAccounts(lambda: [other_url], lambda: Secret(b"t0ken"))),
        ):
            await until(lambda: len(shown) == 2)
    assert shown == ["Bearer t0ken"] * 2


def step(it: Scene, random: Random) -> None:
    """One step of each engine, without the HTTP around it."""
    for replica in it.fleet.replicas:
        name = random.randrange(2000)
        prompt = [1 + name] * BLOCK + [1 + replica.index] * BLOCK * (1 + name % 9)
        packed = array("I", prompt).tobytes()
        sequence = Sequence(len(prompt), chain(packed, BLOCK), 1, owner=Nobody(), ids=packed)
        replica.drive.submit([sequence], 0.0)


class Nobody:
    """Whom an engine tells of what it did."""

    def changed(self, sequence: Sequence) -> None:
        assert sequence.done


@pytest.mark.slow
async def test_after_20000_steps_of_four_replicas_who_joins_equals_its_sibling() -> None:
    random = Random(11)

    def alike() -> bool:
        """All that was published has come to both, and they know the same blocks."""
        return all(
            late.held(slot, medium) == it.follower.held(slot, medium)
            and late.truth.standing(slot, BLOCK) is Standing.COMPLETE
            and len(late.held(slot, Medium.GPU)) == len(replica.drive.engine.cache)
            for slot, replica in enumerate(it.fleet.replicas)
            for medium in Medium
        )

    async with scene(4, cache_blocks=2000, host_cache_blocks=4000) as it:
        await keep(it, 1000)
        for _ in range(5000):
            step(it, random)
            await asyncio.sleep(0)
        async with port(account_route(it.kv.account)) as url:
            async with joiner(it, PeerAccounts(lambda: [url])) as late:
                await until(alike)
                for _ in range(10):
                    for _ in range(100):
                        step(it, random)
                        await asyncio.sleep(0)
                    await until(alike)
        engines = [replica.drive.engine for replica in it.fleet.replicas]
        assert min(engine.cache.evicted_blocks for engine in engines) > 10_000
