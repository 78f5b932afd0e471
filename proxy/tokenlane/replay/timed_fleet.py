"""Simulated replicas in simulated time.

A replica prefills one prompt after the other at a fixed rate. What its cache holds is looked up
when a prefill begins, and a prompt's blocks can be found once its prefill has ended; the first
token leaves `ADDED_S` later. Decoding counts as load: a request is in flight until its last
token. It costs no prefill time unless it is said how much.

Invariants:
- Events happen in order of time, and of equal times in the order in which they were foreseen; so
  a run depends on nothing but its arguments.
- Whoever sends a request holds a lease on it, told of the first token and of the end.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from tokenlane.replay.trace import Request
from tokenlane.simulator.prefix_cache import BoundedBlockCache, matchable_blocks

ADDED_S = 0.02
TOKEN_INTERVAL_S = 0.02
PREFILL_TOKENS_PER_S = 10_000.0


class Held(NamedTuple):
    """A lease, told what its replica does. first_byte: the first token left, and when; end: the
    last."""

    first_byte: Callable[[float], object]
    end: Callable[[], object]


class Sender(Protocol):
    """Decides where a request goes."""

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        """The replica's place, and the lease on it."""
        ...


class Served(NamedTuple):
    """What became of a request. cached_tokens: found by its replica. ttft_s: since its arrival."""

    request: Request
    place: int
    cached_tokens: int
    ttft_s: float

    @property
    def computed_tokens(self) -> int:
        """What its replica had to prefill."""
        return self.request.prompt_tokens - self.cached_tokens


class _Job(NamedTuple):
    request: Request
    held: Held


@dataclass(eq=False)
class TimedReplica:
    """One simulated replica. cache: its own, or one that it shares. decode_cost: by how much of its
    time each answer under way makes a prefill longer. queue: prompts not begun. busy_until_s:
    when the prefill under way ends, while it is `busy`. decoding: answers under way."""

    cache: BoundedBlockCache[int]
    prefill_tokens_per_s: float
    decode_cost: float = 0.0
    decoding: int = 0
    queue: deque[_Job] = field(default_factory=deque)
    busy_until_s: float = 0.0
    busy: bool = False


class TimedFleet:
    """Replicas under a stream of requests. now_s: simulated time. served: in order of the first
    tokens."""

    def __init__(self, replicas: list[TimedReplica], block_tokens: int) -> None:
        self.replicas = replicas
        self.now_s = 0.0
        self.served: list[Served] = []
        self._block_tokens = block_tokens
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._foreseen = 0

    def at(self, when_s: float, happens: Callable[[], object]) -> None:
        """Something happens at a time that has not passed."""
        self._foreseen += 1
        heappush(self._events, (when_s, self._foreseen, happens))

    def run(self, requests: Iterable[Request], sender: Sender) -> list[Served]:
        """All requests, until the last token of the last one."""
        for request in requests:
            self._until(request.arrival_s)
            self.now_s = request.arrival_s
            self.arrive(request, sender)
        self._until(float("inf"))
        return self.served

    def arrive(self, request: Request, sender: Sender) -> None:
        """A request is sent now, by who waited for something that happened."""
        place, held = sender.send(request, self.now_s)
        self._enqueue(place, _Job(request, held))

    def cached_tokens(self, place: int, request: Request) -> int:
        """Prompt tokens that a replica would not have to compute now."""
        return cached_tokens(self.replicas[place].cache, request, self._block_tokens)

    def _until(self, limit_s: float) -> None:
        events = self._events
        while events and events[0][0] <= limit_s:
            self.now_s, _, happens = heappop(events)
            happens()

    def _enqueue(self, place: int, job: _Job) -> None:
        replica = self.replicas[place]
        replica.queue.append(job)
        if not replica.busy:
            self._begin(place)

    def _begin(self, place: int) -> None:
        """The next prefill of a replica, if one waits."""
        replica = self.replicas[place]
        replica.busy = bool(replica.queue)
        if not replica.busy:
            return
        job = replica.queue.popleft()
        cached_tokens = self.cached_tokens(place, job.request)
        computing_s = (job.request.prompt_tokens - cached_tokens) / replica.prefill_tokens_per_s
        computing_s *= 1.0 + replica.decode_cost * replica.decoding
        replica.busy_until_s = self.now_s + computing_s
        self.at(replica.busy_until_s, lambda: self._computed(place, job, cached_tokens))

    def _computed(self, place: int, job: _Job, cached_tokens: int) -> None:
        request = job.request
        replica = self.replicas[place]
        replica.cache.insert(request.block_numbers)
        replica.decoding += 1
        first_s = self.now_s + ADDED_S
        self.served.append(Served(request, place, cached_tokens, first_s - request.arrival_s))
        self.at(first_s, partial(job.held.first_byte, first_s))
        ended_s = first_s + TOKEN_INTERVAL_S * request.output_tokens
        self.at(ended_s, partial(self._decoded, replica, job))
        self._begin(place)

    def _decoded(self, replica: TimedReplica, job: _Job) -> None:
        replica.decoding -= 1
        job.held.end()


def cached_tokens(cache: BoundedBlockCache[int], request: Request, block_tokens: int) -> int:
    """Tokens of the prompt's blocks that are in the cache."""
    limit_blocks = matchable_blocks(request.prompt_tokens, block_tokens)
    return cache.match(request.block_numbers, limit_blocks) * block_tokens


def split(trace_blocks: int, share: float, replicas: int) -> int:
    """Blocks of each replica's cache, where all together hold `share` of the working set."""
    return max(int(share * trace_blocks) // replicas, 1)
