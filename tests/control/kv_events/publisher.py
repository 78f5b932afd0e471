"""A simulated fleet that publishes, the control plane that follows it, and a worker's Truth."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.simulator.client import TEXT, Client
from tests.support import demo_tokenizer
from tokenlane.channel.messages import Cached
from tokenlane.config.settings import KvEventSettings, RoutingSettings, Settings
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.subscribers import KvEvents
from tokenlane.control.probes import session_of
from tokenlane.fleet_state import CacheChange, FleetState, ReplicaState
from tokenlane.routing.truth import Truth
from tokenlane.simulator.prefix_cache import chain
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.keys import salt_of

LIMIT_S = 20.0
BLOCK = 16
QUICK = KvEventSettings(check_interval_s=0.2, answer_deadline_s=0.3, flush_interval_s=0.0)


class Follower:
    """A worker's end: applies what it is told. behind: as if it did not keep up."""

    def __init__(self) -> None:
        self.truth = Truth(0.5)
        self.changes: list[CacheChange] = []
        self.behind = False

    def send(self, message: Cached) -> None:
        self.changes.append(message.change)
        self.truth.apply(message.change)

    def held(self, slot: int, medium: Medium = Medium.GPU) -> set[int]:
        """Our hashes that it believes the replica holds."""
        return {
            one
            for rank in self.truth._ranks(slot)
            for bucket in (rank.gpu if medium is Medium.GPU else rank.host)._buckets
            for one in memoryview(bucket).cast("Q")
        }


class Scene:
    """replicas: simulated ones; kv: what follows them; prompts: ids of all prompts sent."""

    def __init__(self, fleet: SimulatedFleet, kv: KvEvents, follower: Follower) -> None:
        self.fleet = fleet
        self.kv = kv
        self.ends = [follower]
        self.prompts: list[tuple[list[int], str]] = []
        self.states: list[ReplicaState] = []
        self.clients: dict[int, Client] = {}

    @property
    def follower(self) -> Follower:
        return self.ends[0]

    async def send(self, slot: int, ids: list[int], salt: str = "") -> int:
        """A completion of these ids; returns its cached tokens."""
        self.prompts.append((ids, salt))
        client = self.clients.get(slot)
        if client is None:
            client = self.clients[slot] = await Client.connect(self.fleet.replicas[slot].url)
        body = {"prompt": ids, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        client.send(TEXT, body)
        answer = await client.answer()
        assert answer.status == 200
        cached: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    def cached(self, slot: int, medium: Medium = Medium.GPU) -> set[int]:
        """Our hashes of what the simulated cache holds."""
        engine = self.fleet.replicas[slot].drive.engine
        cache: Any = engine.cache if medium is Medium.GPU else engine.host_cache
        if cache is None:
            return set()
        visible = cache._visible if hasattr(cache, "_visible") else {*cache._held, *cache._idle}
        ours: set[int] = set()
        for ids, salt in self.prompts:
            packed = array("I", ids).tobytes()
            theirs = chain(packed, BLOCK, salt)
            mine = memoryview(block_hashes(packed, BLOCK, salt_of("demo", salt))).cast("Q")
            ours |= {own for own, their in zip(mine, theirs, strict=True) if their in visible}
        return ours

    def equal(self) -> bool:
        return all(
            self.follower.held(slot, medium) == self.cached(slot, medium)
            for slot in range(len(self.states))
            for medium in Medium
        )

    def change(self, slot: int, **fields: Any) -> None:
        """The fleet's snapshot says something else now."""
        self.states[slot] = msgspec.structs.replace(self.states[slot], **fields)
        self.kv.update()


async def until(true: Callable[[], bool]) -> None:
    """Polls until it is so."""
    async with asyncio.timeout(LIMIT_S):
        while not true():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(
    count: int = 1,
    spelling: str = "maps",
    kv_events: KvEventSettings = QUICK,
    **simulated: Any,
) -> AsyncIterator[Scene]:
    """`count` replicas whose events are followed from the start."""
    settings = msgspec.convert(
        {"kv_events": spelling, "block_tokens": BLOCK, **simulated}, SimulatorSettings
    )
    async with SimulatedFleet(settings, demo_tokenizer()) as fleet:
        urls = await fleet.start(count)
        ours = Settings(kv_events=kv_events, routing=RoutingSettings())
        made: Scene
        kv = KvEvents(ours, lambda: FleetState(1, tuple(made.states)), lambda: made.ends)
        made = Scene(fleet, kv, Follower())
        made.states = [
            ReplicaState(
                id=url.removeprefix("http://"),
                slot=slot,
                url=url,
                up=True,
                models=("demo",),
                block_tokens=BLOCK,
                started_s=1.0,
            )
            for slot, url in enumerate(urls)
        ]
        async with session_of(ours) as session, asyncio.TaskGroup() as group:
            task = group.create_task(kv.run(lambda: session))
            try:
                yield made
            finally:
                task.cancel()
                for client in made.clients.values():
                    await client.close()
