"""An engine on the event loop: one timer for all its sequences.

Invariants:
- One timer, never one per sequence: what is due in the same millisecond happens in one wake-up.
- The timer rounds up to the loop's millisecond, so a wake-up always finds something due; times
  of tokens are the engine's own and do not drift.
- Owners are told of every change before the method returns.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from tokenlane.simulator.cache_log import Event
from tokenlane.simulator.engine import Engine, Sequence
from tokenlane.simulator.frontend import FrontEnd
from tokenlane.simulator.profile import SimulatorSettings


class Drive:
    """One replica's engine and front end since the replica started. on_cached: told what has
    happened in the cache, where the settings want events."""

    def __init__(
        self,
        settings: SimulatorSettings,
        on_cached: Callable[[list[Event]], None] | None = None,
    ) -> None:
        self._on_cached = on_cached
        self.engine = Engine(settings)
        self.front = FrontEnd(settings.frontend_bytes_per_s, settings.frontend_processes)
        self.started_s = time.time()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._stopped = False

    def submit(self, sequences: Iterable[Sequence], ready_s: float) -> None:
        """Add sequences, which leave the front end at `ready_s`."""
        now = time.monotonic()
        for sequence in sequences:
            self._tell(self.engine.submit(sequence, now, ready_s))
        self._schedule(now)

    def abort(self, sequences: Iterable[Sequence]) -> None:
        """Abort sequences whose client is gone."""
        now = time.monotonic()
        for sequence in sequences:
            if not sequence.done:
                self._tell(self.engine.abort(sequence, now))
        self._schedule(now)

    def clear_cache(self) -> bool:
        """As the engine's."""
        cleared = self.engine.clear_cache()
        self._tell([])
        return cleared

    def stop(self) -> None:
        """Stop the engine for good."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        self._timer_s = math.inf
        now = time.monotonic()
        self._tell(self.engine.advance(now))
        self._schedule(now)

    def _tell(self, changed: list[Sequence]) -> None:
        if self._on_cached is not None and self.engine.log is not None:
            events = self.engine.log.take()
            if events:
                self._on_cached(events)
        for sequence in changed:
            sequence.owner.changed(sequence)

    def _schedule(self, now: float) -> None:
        next_s = self.engine.next_event_s
        if self._stopped or next_s is None or next_s >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(1.0, math.ceil((next_s - now) * 1000.0)) / 1000.0
        self._timer_s = next_s
        self._timer = self._loop.call_later(delay_s, self._wake)
