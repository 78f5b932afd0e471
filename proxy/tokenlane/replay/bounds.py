"""What no router over split caches can be expected to beat.

pooled bound: the hit rate of one LRU cache of the size of all together, where every prompt is
there as soon as it was asked for.
oracle: replicas that all see one shared cache of that size, so that load alone decides; each
request goes to the replica that would begin it first.
"""

from functools import partial

from tokenlane.replay.run import FleetShape
from tokenlane.replay.timed_fleet import Held, Served, TimedFleet, TimedReplica, cached_tokens
from tokenlane.replay.trace import Request, Trace
from tokenlane.routing.lease import Lease, LocalBoard
from tokenlane.simulator.prefix_cache import BoundedBlockCache


def pooled_hit(trace: Trace, cache_blocks: int) -> float:
    """The share of prompt tokens found in one LRU cache of so many blocks."""
    cache: BoundedBlockCache[int] = BoundedBlockCache(cache_blocks)
    hit_tokens = 0
    for request in trace.requests:
        hit_tokens += cached_tokens(cache, request, trace.block_tokens)
        cache.insert(request.block_numbers)
    return hit_tokens / trace.prompt_tokens


class _Oracle:
    """Sends to the shortest queue, by the counts that a gateway has."""

    def __init__(self, fleet: TimedFleet) -> None:
        self._fleet = fleet
        self._board = LocalBoard()
        self._slots = range(len(fleet.replicas))

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        requests, queued_tokens = self._board.columns(self._slots)
        place = min(self._slots, key=lambda slot: (queued_tokens[slot], requests[slot]))
        uncached_tokens = request.prompt_tokens - self._fleet.cached_tokens(place, request)
        lease = Lease(self._board, place, uncached_tokens)
        lease.__enter__()
        return place, Held(lease.first_byte, partial(lease.__exit__, None, None, None))


def oracle(trace: Trace, shape: FleetShape) -> list[Served]:
    """The trace through the oracle."""
    shared: BoundedBlockCache[int] = BoundedBlockCache(shape.replicas * shape.cache_blocks)
    replicas = [
        TimedReplica(shared, shape.prefill_tokens_per_s, shape.decode_cost)
        for _ in range(shape.replicas)
    ]
    fleet = TimedFleet(replicas, trace.block_tokens)
    return fleet.run(trace.requests, _Oracle(fleet))
