"""Several gateways in front of one fleet, each knowing what travels between them.

Every request comes to a gateway drawn by lot. A gateway has a router of its own, which learns what
replicas hold from their KV events (at once, as every gateway subscribes to them), or, without
events, from what it routed itself and what the others say they routed.

Invariants:
- A gateway knows its own requests at once. Those of the others it knows `share_delay_s` later, or
  never where nothing is shared.
- One gateway without events decides as the plain replay does.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from tokenlane.config.settings import RoutingSettings
from tokenlane.fleet_state import CacheChange, Standing
from tokenlane.replay.run import FleetShape, RoutedRequest
from tokenlane.replay.timed_fleet import Held, Served, TimedFleet
from tokenlane.replay.trace import Request, Trace
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.policies import Policy
from tokenlane.routing.router import Router
from tokenlane.routing.shared_prefixes import PrefixOutbox, read
from tokenlane.simulator.prefix_cache import BoundedBlockCache
from tokenlane.tokens.blocks import hashing_mark

_SWEEP_INTERVAL_S = 1.0


class GatewayShape(NamedTuple):
    """The gateways. share_delay_s: how old what they tell each other is; None: they tell nothing.
    events: replicas publish KV events. seed: of the lots that decide who comes to which. prefixes:
    with events too they tell each other what they routed where; prefix_limit_bytes_per_s: of it."""

    gateways: int
    share_delay_s: float | None = None
    events: bool = True
    seed: int = 1
    prefixes: bool = False
    prefix_limit_bytes_per_s: int = 64 * 1024

    @property
    def tells_prefixes(self) -> bool:
        """What was routed where is told, not only how much is in flight."""
        return self.share_delay_s is not None and (self.prefixes or not self.events)

    def words(self) -> str:
        """Say it in one line."""
        shared = "nothing is shared"
        if self.share_delay_s is not None:
            also = " and what was routed where" if self.tells_prefixes else ""
            shared = f"others' load{also} known after {self.share_delay_s:g} s"
        return (
            f"{self.gateways} gateways, {'with' if self.events else 'without'} KV events; {shared}"
        )


class _PublishingCache(BoundedBlockCache[int]):
    """A cache that tells what it stored and what made room for it, both packed."""

    def __init__(self, capacity_blocks: int, tell: Callable[[bytes, bytes], None]) -> None:
        self._gone = array("Q")
        super().__init__(capacity_blocks, self._gone.append)
        self._tell = tell

    def publish(self, blocks: Sequence[int]) -> int:
        new = super().publish(blocks)
        if new or self._gone:
            self._tell(array("Q", blocks).tobytes(), self._gone.tobytes())
            del self._gone[:]
        return new


class _GatewayBoard:
    """One gateway's view of what is in flight: its own counts now, the others' as they were.
    told: all gateways' counts as of the delay. later: calls back after the delay, None: never."""

    def __init__(
        self, told: LocalBoard, later: Callable[[Callable[[], object]], None] | None
    ) -> None:
        self._own, self._own_told, self._told = LocalBoard(), LocalBoard(), told
        self._later = later

    def add(self, slot: int, requests: int, queued_tokens: int) -> None:
        self._own.add(slot, requests, queued_tokens)
        if self._later is not None:
            self._later(partial(self._tell, slot, requests, queued_tokens))

    def columns(self, slots: Sequence[int]) -> tuple[list[int], list[int]]:
        own, all_told, own_told = (
            board.columns(slots) for board in (self._own, self._told, self._own_told)
        )
        requests, queued_tokens = (
            [mine + told - mine_told for mine, told, mine_told in zip(*column)]
            for column in zip(own, all_told, own_told)
        )
        return requests, queued_tokens

    def others(self, slots: Sequence[int]) -> Sequence[int]:
        return ()

    def _tell(self, slot: int, requests: int, queued_tokens: int) -> None:
        for board in (self._told, self._own_told):
            board.add(slot, requests, queued_tokens)


class Gateways:
    """Sends each request through a gateway drawn by lot. routers: one for each gateway."""

    def __init__(
        self,
        shape: GatewayShape,
        fleet_shape: FleetShape,
        block_tokens: int,
        settings: RoutingSettings,
        policy: Policy | None = None,
    ) -> None:
        caches = [
            _PublishingCache(fleet_shape.cache_blocks, partial(self._cached, slot))
            for slot in range(fleet_shape.replicas)
        ]
        self.fleet: TimedFleet = fleet_shape.fleet(block_tokens, caches)
        self._shape = shape
        self._block_tokens = block_tokens
        self._random = Random(shape.seed)
        told = LocalBoard()
        later = None if shape.share_delay_s is None else self._later
        self.routers = [
            Router(settings, _GatewayBoard(told, later), Random(1 + number), policy=policy)
            for number in range(shape.gateways)
        ]
        self._hashing = hashing_mark(block_tokens)
        self._outboxes = [
            PrefixOutbox(self._hashing, shape.prefix_limit_bytes_per_s) for _ in self.routers
        ]
        for router in self.routers:
            router.update(fleet_shape.state(block_tokens))
        for slot in range(fleet_shape.replicas):
            self._cached(slot, b"", b"")
        self._swept_s = 0.0

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        if now_s - self._swept_s >= _SWEEP_INTERVAL_S:
            self._swept_s = now_s
            for router in self.routers:
                router.sweep(now_s)
        number = self._random.randrange(len(self.routers))
        routed = RoutedRequest(self.routers[number], self._block_tokens)
        slot, held = routed.send(request, now_s)
        if self._shape.tells_prefixes:
            outbox = self._outboxes[number]
            outbox.offer(str(slot), request.blocks)
            self._later(partial(self._learn, number, outbox.take(now_s)))
        return slot, held

    def _later(self, happens: Callable[[], object]) -> None:
        self.fleet.at(self.fleet.now_s + (self._shape.share_delay_s or 0.0), happens)

    def _learn(self, teller: int, batch: bytes) -> None:
        told = read(batch, self._hashing)
        for number, router in enumerate(self.routers):
            if number != teller:
                for one in told:
                    router.learn(int(one.replica_id), one.blocks, self.fleet.now_s)

    def _cached(self, slot: int, stored: bytes, removed: bytes) -> None:
        """A replica's cache has changed."""
        if not self._shape.events:
            return
        change = CacheChange(
            slot, 0, 1, Standing.COMPLETE, self._block_tokens, stored=stored, removed=removed
        )
        for router in self.routers:
            router.cached(change)


def replay_gateways(
    trace: Trace,
    fleet_shape: FleetShape,
    shape: GatewayShape,
    settings: RoutingSettings,
    policy: Policy | None = None,
) -> list[Served]:
    """The trace through several gateways. policy: instead of the one that the settings name."""
    gateways = Gateways(shape, fleet_shape, trace.block_tokens, settings, policy)
    return gateways.fleet.run(trace.requests, gateways)
