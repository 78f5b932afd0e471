"""Deadlines that cost an attribute write.

Invariants:
- Setting and clearing touch no timer of the loop while one is armed that fires soon enough: a
  request sets several deadlines, and nearly none of them ever fires.
- A deadline fires once, at most `_TICK_S` after a later `set` or `clear` moved it, never before.
- The loop looks at its sockets once more before a deadline fires: what came in time while the loop
  was busy is not late.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tokenlane.runtime.clock import monotonic

_TICK_S: Final = 2.0
# The shortest timer that is one: without a delay the loop would not poll in between.
_TURN_S: Final = 0.001
NEVER: Final = float("inf")


class Deadline:
    """One deadline of one owner. `fire` is called on the loop when it passes.

    due_s: as of time.monotonic(); owners on the hot path clear it by setting it to NEVER.
    """

    __slots__ = ("_armed_at_s", "_fire", "_handle", "_loop", "due_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self.due_s = NEVER
        self._armed_at_s = NEVER

    def set(self, delay_s: float) -> None:
        """Make it due in `delay_s` seconds, whatever was set before."""
        now_s = monotonic()
        self.due_s = now_s + delay_s
        if self._handle is None or self.due_s < self._armed_at_s:
            self._arm(now_s)

    def clear(self) -> None:
        """Make it never due. A timer that is armed then finds nothing to do."""
        self.due_s = NEVER

    def close(self) -> None:
        """Clear it, and drop the reference to the owner at once."""
        self.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, now_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        wait_s = min(self.due_s - now_s, _TICK_S)
        self._armed_at_s = now_s + wait_s
        self._handle = self._loop.call_later(wait_s, self._tick, False)

    def _tick(self, passed: bool) -> None:
        self._handle = None
        if self.due_s == NEVER:
            return
        now_s = monotonic()
        # The loop's clock may run a little ahead of ours; a millisecond is not worth a tick.
        if now_s < self.due_s - 0.001:
            self._arm(now_s)
        elif not passed:
            self._armed_at_s = now_s
            self._handle = self._loop.call_later(_TURN_S, self._tick, True)
        else:
            self.due_s = NEVER
            self._fire()
