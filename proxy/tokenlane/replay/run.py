"""One replay: a trace through the product's router, and what came of it in figures.

Invariants:
- Every decision is the product's own: its Router, its index, its leases, a policy of its shape.
  Nothing here chooses a replica.
- A run is repeatable: the same trace, settings and policy give the same figures.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from tokenlane.config.settings import RoutingSettings
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.replay.timed_fleet import (
    PREFILL_TOKENS_PER_S,
    Held,
    Served,
    TimedFleet,
    TimedReplica,
)
from tokenlane.replay.trace import Request, Trace
from tokenlane.routing.decision import Query
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.policies import Policy
from tokenlane.routing.router import Router
from tokenlane.simulator.prefix_cache import BoundedBlockCache

WINDOW_S = 60.0


class FleetShape(NamedTuple):
    """The fleet to replay against. cache_blocks: of each replica. decode_cost: as a replica's."""

    replicas: int
    cache_blocks: int
    prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S
    decode_cost: float = 0.0

    def fleet(self, block_tokens: int, caches: Sequence[BoundedBlockCache[int]] = ()) -> TimedFleet:
        """Idle replicas with empty caches of their own. caches: these, by slot."""
        caches = caches or [BoundedBlockCache(self.cache_blocks) for _ in range(self.replicas)]
        replicas = [
            TimedReplica(cache, self.prefill_tokens_per_s, self.decode_cost) for cache in caches
        ]
        return TimedFleet(replicas, block_tokens)

    def state(self, block_tokens: int, started_s: Sequence[float] = ()) -> FleetState:
        """The same as the control plane would tell it. started_s: by slot, else 1."""
        return FleetState(
            version=1,
            replicas=tuple(
                ReplicaState(
                    id=f"r{slot}",
                    slot=slot,
                    url="",
                    up=True,
                    block_tokens=block_tokens,
                    cache_blocks=self.cache_blocks,
                    started_s=started_s[slot] if started_s else 1.0,
                )
                for slot in range(self.replicas)
            ),
        )


class RoutedRequest:
    """Sends requests as a worker of the gateway would."""

    def __init__(self, router: Router, block_tokens: int) -> None:
        self.router = router
        self._block_tokens = block_tokens

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        router, tokens = self.router, request.prompt_tokens
        query = Query(
            request.blocks,
            self._block_tokens,
            tokens,
            tokens,
            router.draw(),
            parent=request.parent,
        )
        choice = router.decide(query, router.eligible(None, now_s), now_s).choice
        lease = router.attempt(choice, query, now_s)
        lease.__enter__()
        return choice.slot, Held(lease.first_byte, partial(lease.__exit__, None, None, None))


class Figures(NamedTuple):
    """What a replay is told by.

    hit: share of all prompt tokens found in caches. ttft_…_s: since arrival. imbalance_60s: in
    each minute the prompt tokens to compute of the replica with the most, over the mean of all;
    the mean of the minutes, weighed by their work.
    """

    hit: float
    ttft_mean_s: float
    ttft_p99_s: float
    imbalance_60s: float

    @classmethod
    def of(cls, served: Sequence[Served], replicas: int) -> "Figures":
        """served: at least one."""
        ttfts = sorted(one.ttft_s for one in served)
        tokens = sum(one.request.prompt_tokens for one in served)
        return cls(
            hit=sum(one.cached_tokens for one in served) / tokens,
            ttft_mean_s=sum(ttfts) / len(ttfts),
            ttft_p99_s=ttfts[-(-99 * len(ttfts) // 100) - 1],
            imbalance_60s=_imbalance(served, replicas),
        )


def _imbalance(served: Sequence[Served], replicas: int) -> float:
    windows: dict[int, list[int]] = defaultdict(lambda: [0] * replicas)
    for one in served:
        windows[int(one.request.arrival_s / WINDOW_S)][one.place] += one.computed_tokens
    work = sum(map(sum, windows.values()))
    return replicas * sum(map(max, windows.values())) / work if work else 1.0


def new_router(settings: RoutingSettings, policy: Policy | None = None, seed: int = 1) -> Router:
    """A worker's router, with dice that fall alike in every run."""
    return Router(settings, LocalBoard(), Random(seed), policy=policy)


def replay(
    trace: Trace, shape: FleetShape, settings: RoutingSettings, policy: Policy | None = None
) -> list[Served]:
    """The trace through a router. policy: instead of the one that the settings name."""
    router = new_router(settings, policy)
    router.update(shape.state(trace.block_tokens))
    fleet = shape.fleet(trace.block_tokens)
    return fleet.run(trace.requests, RoutedRequest(router, trace.block_tokens))
