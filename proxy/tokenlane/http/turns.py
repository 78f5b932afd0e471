"""Turns of the loop, for work that would be too much for one: first in, first out, as much in each
as fits.

Peers choose how much work their bytes are. One read of 256 KB may be a piece of a body or 40 000
chunks, and twenty long bodies may be complete at once, each half a millisecond to read: whatever is
more than a callback should do goes on in turns of its own, and all others run between them.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class TurnQueue:
    """Calls that wait for their turn. share: of a turn, which a call takes, at most 1."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], object], float]] = deque()
        self._left = 1.0
        self._next_is_due = False

    def add(self, call: Callable[[], object], share: float = 1.0) -> None:
        """Call it when its turn comes, from a fresh stack."""
        self._waiting.append((call, share))
        self._schedule_next()

    def take(self, share: float) -> bool:
        """Return whether the caller may go on at once: so much of this turn is left, and nobody
        waits."""
        if self._waiting or self._left < share:
            return False
        self._left -= share
        self._schedule_next()
        return True

    def _schedule_next(self) -> None:
        if not self._next_is_due:
            self._next_is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._left, self._next_is_due = 1.0, False
        while self._waiting and self._waiting[0][1] <= self._left:
            call, share = self._waiting.popleft()
            self._left -= share
            self._schedule_next()
            call()
