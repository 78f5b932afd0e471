"""The router in front of the simulated fleet when replicas restart, gateways restart, or one is
too slow for what it was given. Simulated time throughout."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.replay.workloads import conversations
from tokenlane.config.settings import RoutingSettings
from tokenlane.replay.run import FleetShape, RoutedRequest, new_router
from tokenlane.replay.timed_fleet import Held, TimedFleet
from tokenlane.replay.trace import MOONCAKE_BLOCK_TOKENS as BLOCK
from tokenlane.replay.trace import Request, packed

REPLICAS = 4
SHAPE = FleetShape(REPLICAS, cache_blocks=4000)
RESTART_S = 120.0


class Watched:
    """A sender that can be exchanged, noting what each replica is sent after a time."""

    def __init__(self, since_s: float) -> None:
        self.router = new_router(RoutingSettings())
        self.router.update(SHAPE.state(BLOCK))
        self.since_s = since_s
        self.requests: Counter[int] = Counter()

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        place, held = RoutedRequest(self.router, BLOCK).send(request, now_s)
        if self.since_s <= now_s < self.since_s + 60:
            self.requests[place] += 1
        return place, held


def replica_restarts(fleet: TimedFleet, watched: Watched) -> None:
    fleet.replicas[2].cache.clear()
    watched.router.update(SHAPE.state(BLOCK, [1.0, 1.0, RESTART_S, 1.0]))


def all_replicas_restart(fleet: TimedFleet, watched: Watched) -> None:
    for replica in fleet.replicas:
        replica.cache.clear()
    watched.router.update(SHAPE.state(BLOCK, [RESTART_S] * REPLICAS))


def gateway_restarts(fleet: TimedFleet, watched: Watched) -> None:
    watched.router = new_router(RoutingSettings(), seed=9)
    watched.router.update(SHAPE.state(BLOCK))


@pytest.mark.parametrize("gap_s", [0.9, 2.0])
@pytest.mark.parametrize(
    "happens", [replica_restarts, all_replicas_restart, gateway_restarts], ids=lambda f: f.__name__
)
def test_nobody_gets_more_than_half_over_its_share_after_a_restart(
    happens: Callable[[TimedFleet, Watched], None], gap_s: float
) -> None:
    trace = conversations(300, 8, gap_s=gap_s, first_blocks=6)
    fleet, watched = SHAPE.fleet(BLOCK), Watched(RESTART_S)
    fleet.at(RESTART_S, lambda: happens(fleet, watched))
    served = fleet.run(trace.requests, watched)
    assert len(served) == len(trace.requests)
    assert watched.requests.total() > 30
    work: Counter[int] = Counter()
    for one in served:
        if RESTART_S <= one.request.arrival_s < RESTART_S + 60:
            work[one.place] += one.computed_tokens
    assert max(work.values()) <= 1.5 / REPLICAS * work.total()
    assert max(watched.requests.values()) <= 1.5 / REPLICAS * watched.requests.total()


def test_a_restarted_replica_is_not_believed_to_hold_anything() -> None:
    trace = conversations(200, 8)
    fleet, watched = SHAPE.fleet(BLOCK), Watched(RESTART_S)
    fleet.at(RESTART_S, lambda: replica_restarts(fleet, watched))
    fleet.at(RESTART_S, lambda: assert_nothing_held(watched))
    fleet.run(trace.requests, watched)


def assert_nothing_held(watched: Watched) -> None:
    assert watched.router.index.held_blocks(2) == 0
    assert watched.router.index.held_blocks(1) > 0


def test_a_saturated_replica_loses_its_affinity_before_its_queue_doubles() -> None:
    """Everybody asks with one long prefix that one replica holds, faster than it can answer."""
    router = new_router(RoutingSettings())
    router.update(SHAPE.state(BLOCK))
    fleet = SHAPE.fleet(BLOCK)
    queued_tokens: list[int] = []
    homes: list[int] = []

    class Noting(RoutedRequest):
        def send(self, request: Request, now_s: float) -> tuple[int, Held]:
            place, held = super().send(request, now_s)
            homes.append(place)
            first = homes[0]
            queued_tokens.append(router._board.columns([first])[1][0])
            return place, held

    prefix = list(range(1, 13))
    requests = [Request(0.0, 12 * BLOCK + 1, 1, packed(prefix))]
    requests += [
        # 20 a second, three blocks of their own each: three times what one replica can compute.
        Request(10 + at / 20, 15 * BLOCK, 1, packed([*prefix, *range(100 + 3 * at, 103 + 3 * at)]))
        for at in range(400)
    ]
    fleet.run(requests, Noting(router, BLOCK))
    spilled = next(at for at, place in enumerate(homes) if place != homes[0])
    # They stay while that is cheaper, then go elsewhere, and in the end as many share the work as
    # it takes.
    assert spilled > 3
    assert max(queued_tokens) < 2 * queued_tokens[spilled - 1]
    assert len(set(homes)) >= 3
    late = Counter(homes[200:])
    assert max(late.values()) < 0.5 * late.total()
