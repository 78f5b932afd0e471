"""The engine of one replica: who waits, who runs, and when each token is there.

Invariants:
- The clock is the caller's; things happen at their own time, whenever `advance` is called, so a
  late caller shifts nothing and the same requests always give the same times.
- Sequences start in the order in which they were ready, one prefill at a time; a sequence that
  does not fit (slots, blocks) holds up those behind it, as in vLLM.
- The prefill is never idle while a sequence waits that could start.
- A sequence reserves the blocks of its whole answer when it starts: nothing is preempted.
- The last prompt token is always computed. Computed blocks become visible when the prefill ends.
- Blocks are copied to the CPU's memory as they become visible, where there is such a cache. What is
  found there alone is not computed again, and is visible on the GPU when the prefill ends.
"""

import heapq
import itertools
from collections import deque
from enum import IntEnum
from functools import partial
from typing import Any

import msgspec

from tokenlane.simulator.cache_log import CacheLog
from tokenlane.simulator.prefix_cache import (
    Blocks,
    BoundedBlockCache,
    matchable_blocks,
    prefix_cache,
)
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.stats import EngineStats


class SequencePhase(IntEnum):
    """Where a sequence stands."""

    FRONT = 0
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    DONE = 4


class Sequence(msgspec.Struct, eq=False):
    """One prompt and its answer in the making. Equal to itself alone.

    blocks: hashes of the prompt's full blocks; generated_blocks: those that follow once the
    answer is complete (empty: they are not cached). every_token: progress is wanted for each
    token, not only at the end. finish: why it will end, then why it ended: stop, length, abort,
    rejected. produced: tokens there so far. cached_tokens, created_cache_tokens: of the prompt,
    found in the cache and added to it. owner: the caller's. ids, salt, adapter: what the blocks are
    made of, where somebody is told of them.
    """

    prompt_tokens: int
    blocks: Blocks
    output_tokens: int
    finish: str = "length"
    every_token: bool = False
    generated_blocks: Blocks = ()
    owner: Any = None
    ids: bytes = b""
    salt: str = ""
    adapter: str = ""
    phase: SequencePhase = SequencePhase.FRONT
    cached_tokens: int = 0
    created_cache_tokens: int = 0
    produced: int = 0
    held: Blocks = ()
    private: int = 0
    queued_s: float = 0.0
    started_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    dirty: bool = False

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return self.phase is SequencePhase.DONE


class Engine:
    """Every verb returns the sequences that changed (queued, tokens, end), each once."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.log = CacheLog(settings.block_tokens) if settings.kv_events != "off" else None
        on_evicted = self.log.removed if self.log is not None else None
        self.cache = prefix_cache(settings.cache_blocks, on_evicted)
        self.host_cache: BoundedBlockCache[bytes] | None = None
        if settings.host_cache_blocks is not None:
            on_lost = partial(self.log.removed, medium="CPU") if self.log is not None else None
            self.host_cache = BoundedBlockCache(settings.host_cache_blocks, on_lost)
        self.stats = EngineStats(settings.max_model_tokens)
        self.slowness = 1.0
        self.running = 0
        self._waiting: deque[Sequence] = deque()
        self._prefilling: Sequence | None = None
        self._starting = False
        self._events: list[tuple[float, int, Sequence]] = []
        self._order = itertools.count()
        self._changed: list[Sequence] = []

    @property
    def waiting(self) -> int:
        """Sequences that are ready and have not started."""
        return len(self._waiting)

    @property
    def next_event_s(self) -> float | None:
        """When `advance` has something to do; None: not before the next `submit`."""
        return self._events[0][0] if self._events else None

    def submit(self, sequence: Sequence, now: float, ready_s: float = 0.0) -> list[Sequence]:
        """Add a sequence; until `ready_s` it is still in the front end."""
        self._run(now)
        if ready_s <= now:
            self._queue(sequence, now)
        else:
            self._at(ready_s, sequence)
        return self._take_changed()

    def advance(self, now: float) -> list[Sequence]:
        """Everything that has happened by now."""
        self._run(now)
        return self._take_changed()

    def abort(self, sequence: Sequence, now: float) -> list[Sequence]:
        """Free what the sequence holds at once: its client is gone."""
        self._run(now)
        phase = sequence.phase
        if phase is SequencePhase.DONE:
            return self._take_changed()
        if phase is SequencePhase.WAITING:
            self._waiting.remove(sequence)
        elif phase is not SequencePhase.FRONT:
            self._leave(sequence)
        self._end(sequence, now, "abort")
        self._start(now)
        return self._take_changed()

    def clear_cache(self) -> bool:
        """Forget everything cached; False, and no change, while sequences run."""
        cleared = self.cache.clear()
        if cleared and self.host_cache is not None:
            self.host_cache.clear()
        if cleared and self.log is not None:
            self.log.cleared()
        return cleared

    def _run(self, now: float) -> None:
        events = self._events
        while events and events[0][0] <= now:
            at_s, _, sequence = heapq.heappop(events)
            phase = sequence.phase
            if phase is SequencePhase.DECODE:
                self._token(sequence, at_s)
            elif phase is SequencePhase.PREFILL:
                self._prefilled(sequence, at_s)
                self._start(at_s)
            elif phase is SequencePhase.FRONT:
                self._queue(sequence, at_s)

    def _queue(self, sequence: Sequence, at_s: float) -> None:
        limit = self.settings.queue_limit
        if limit is not None and self.running + len(self._waiting) >= limit:
            self.stats.counts.rejected += 1
            self._end(sequence, at_s, "rejected")
            return
        sequence.phase = SequencePhase.WAITING
        sequence.queued_s = at_s
        self._change(sequence)
        self._waiting.append(sequence)
        self._start(at_s)

    def _start(self, at_s: float) -> None:
        """Start whom it can. A sequence that ends at once comes back here: no nesting."""
        if self._starting:
            return
        self._starting = True
        rate = self.settings.prefill_tokens_per_s
        while self._waiting and self._prefilling is None:
            sequence = self._waiting[0]
            if self.running >= self.settings.running_limit or not self._place(sequence):
                break
            self._waiting.popleft()
            self.running += 1
            sequence.phase = SequencePhase.PREFILL
            sequence.started_s = at_s
            if rate is None:
                self._prefilled(sequence, at_s)
            else:
                self._prefilling = sequence
                computed = sequence.prompt_tokens - sequence.cached_tokens
                self._at(at_s + computed * self.slowness / rate, sequence)
        self._starting = False

    def _place(self, sequence: Sequence) -> bool:
        """Take the blocks of the whole sequence; False while there is no room."""
        width = self.settings.block_tokens
        limit_blocks = matchable_blocks(sequence.prompt_tokens, width)
        matched = self.cache.match(sequence.blocks, limit_blocks)
        # The last token of an answer is never fed back, so it needs no place.
        total = -(-(sequence.prompt_tokens + sequence.output_tokens - 1) // width)
        held = sequence.blocks[:matched]
        if not self.cache.take(held, total - matched):
            return False
        sequence.held = held
        sequence.private = total - matched
        if self.host_cache is not None:
            matched = max(matched, self.host_cache.match(sequence.blocks, limit_blocks))
        sequence.cached_tokens = matched * width
        sequence.created_cache_tokens = (len(sequence.blocks) - matched) * width
        self.stats.started(sequence.prompt_tokens, sequence.cached_tokens)
        return True

    def _publish(self, sequence: Sequence, blocks: Blocks) -> None:
        fresh = self.cache.publish(blocks)
        sequence.held += blocks
        sequence.private -= len(blocks)
        if fresh and self.log is not None:
            held = sequence.held
            self.log.stored(held, len(held) - fresh, sequence.ids, sequence.salt, sequence.adapter)
        if self.host_cache is not None:
            self._offload(self.host_cache, sequence.held)

    def _offload(self, cache: BoundedBlockCache[bytes], blocks: Blocks) -> None:
        blocks = blocks[: cache.capacity_blocks]
        known = cache.match(blocks, len(blocks))
        cache.insert(blocks)
        if self.log is not None:
            self.log.offloaded(blocks[known:])

    def _prefilled(self, sequence: Sequence, at_s: float) -> None:
        self._prefilling = None
        self._publish(sequence, sequence.blocks[len(sequence.held) :])
        sequence.phase = SequencePhase.DECODE
        sequence.first_token_s = at_s
        sequence.produced = 1
        self._change(sequence)
        interval_s = self.settings.token_interval_s * self.slowness
        left = sequence.output_tokens - 1
        if not left or not interval_s:
            self._complete(sequence, at_s)
        else:
            self._at(at_s + interval_s * (1 if sequence.every_token else left), sequence)

    def _token(self, sequence: Sequence, at_s: float) -> None:
        if sequence.every_token and sequence.produced + 1 < sequence.output_tokens:
            sequence.produced += 1
            self._change(sequence)
            self._at(at_s + self.settings.token_interval_s * self.slowness, sequence)
        else:
            self._complete(sequence, at_s)

    def _complete(self, sequence: Sequence, at_s: float) -> None:
        sequence.produced = sequence.output_tokens
        self._publish(sequence, sequence.generated_blocks)
        self._leave(sequence)
        self._end(sequence, at_s, sequence.finish)
        self.stats.completed(sequence)
        self._start(at_s)

    def _leave(self, sequence: Sequence) -> None:
        if self._prefilling is sequence:
            self._prefilling = None
        self.cache.release(sequence.held, sequence.private)
        self.running -= 1

    def _end(self, sequence: Sequence, at_s: float, finish: str) -> None:
        sequence.phase = SequencePhase.DONE
        sequence.finish = finish
        sequence.ended_s = at_s
        self._change(sequence)

    def _at(self, at_s: float, sequence: Sequence) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), sequence))

    def _change(self, sequence: Sequence) -> None:
        if not sequence.dirty:
            sequence.dirty = True
            self._changed.append(sequence)

    def _take_changed(self) -> list[Sequence]:
        changed = self._changed
        if changed:
            self._changed = []
            for sequence in changed:
                sequence.dirty = False
        return changed
