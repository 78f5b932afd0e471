"""The heartbeat of an event loop: how late its timers are is how long it was held.

Invariants:
- Always one timer, no task. A beat costs a few microseconds.
- Lateness never invents a stall: uvloop's timers count whole milliseconds of a cached clock, so
  a beat may come up to 1 ms early (counted as 0) and a stall may be reported up to 1 ms short.
- `beat_s` and `period_s` let another thread see that the loop is late while it still is.
"""

import asyncio
import time
from collections.abc import Callable

PERIOD_S = 0.005


class Heartbeat:
    """Calls `observe(lateness_s)` every `period_s` seconds on the running loop.

    beat_s: time.monotonic() of the last beat.
    """

    def __init__(self, observe: Callable[[float], None], period_s: float = PERIOD_S) -> None:
        self.period_s = period_s
        self.beat_s = time.monotonic()
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begins to beat. The first beat is due one period from now."""
        self._arm()

    def stop(self) -> None:
        """Stops beating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self.period_s, self._beat)
        self._due_s = time.monotonic() + self.period_s

    def _beat(self) -> None:
        self.beat_s = now = time.monotonic()
        self._observe(max(0.0, now - self._due_s))
        self._arm()
