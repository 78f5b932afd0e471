"""Which of the clients that wait to be accepted are refused: CoDel (RFC 8289) at the door. Pure.

A burst that drains is no overload, however long its queue: nobody is refused for it. The queue is
overloaded when its first client has waited too long for a whole interval and the queue has not
shrunk meanwhile. Then clients that have waited a quarter of that are refused, so that the others
are served soon and a standing queue drains, until nobody has waited that long for an interval. Few
are accepted in a turn of the loop then, but more in a long one: a loop that gets too little of its
core has long turns, and would refuse clients that it can serve.

Invariants:
- Waits are counted from when a client was first seen: never longer than they were.
- Memory is bounded by the queue: a mark stands for one client or more of those that wait.
"""

from collections import deque
from typing import Final

INTERVAL_S: Final = 0.1
# Share of the usual limit that a client may wait in overload.
_OVERLOADED_SHARE: Final = 0.25
# Waits are measured to this share of the limit.
_STEPS: Final = 16
# Beside the one that the loop accepts in each turn; in overload one for so much of the turn.
_TAKEN_COUNT: Final = 15
_TAKEN_EVERY_S: Final = 0.005


class CoDel:
    """Decides for one first-in, first-out queue. Times: monotonic seconds."""

    def __init__(self) -> None:
        self.overloaded = False
        self._left = 0
        # When so many arrivals, counted from the beginning, had been seen.
        self._marks: deque[tuple[float, int]] = deque()
        self._late_s = -1.0
        self._late_waiting = 0

    def look(self, now_s: float, waiting: int, left: int, target_s: float) -> int:
        """Return how many clients to refuse now, from the head of the queue. waiting: the queue's
        length. left: clients that left it since the last call, refused or not. target_s: the
        longest wait that is allowed.
        """
        step_s = target_s / _STEPS
        if self.overloaded:
            target_s *= _OVERLOADED_SHARE
        self._left += left
        came = self._left + waiting
        marks = self._marks
        while marks and marks[0][1] <= self._left:
            marks.popleft()
        if waiting and (not marks or (came > marks[-1][1] and now_s - marks[-1][0] >= step_s)):
            marks.append((now_s, came))
        if not marks or now_s - marks[0][0] < target_s:
            if self.overloaded and now_s - self._late_s >= INTERVAL_S:
                self.overloaded = False
            if not self.overloaded:
                self._late_s = -1.0
            return 0
        if self.overloaded:
            self._late_s = now_s
        elif not self._grows(now_s, waiting):
            return 0
        due = 0
        for at_s, count in marks:
            if now_s - at_s < target_s:
                break
            due = count - self._left
        return min(due, waiting)

    def takes(self, turn_s: float) -> int:
        """Return how many of those that still wait to accept now. turn_s: since the last look."""
        return min(_TAKEN_COUNT, int(turn_s / _TAKEN_EVERY_S)) if self.overloaded else _TAKEN_COUNT

    def _grows(self, now_s: float, waiting: int) -> bool:
        """Return whether the queue is overloaded, now that its first client has waited too long."""
        if self._late_s >= 0.0:
            if now_s - self._late_s < INTERVAL_S:
                return False
            self.overloaded = waiting >= self._late_waiting
        self._late_s = now_s
        self._late_waiting = waiting
        return self.overloaded
