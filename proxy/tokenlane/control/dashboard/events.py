"""What happened to the gateway in the last hour, for people. Pure: the time is an argument.

Invariants:
- Bounded by age and in number. Events of one kind that follow each other closely are one, counted.
"""

from collections import deque

from tokenlane.control.dashboard.live import EventRow

KEEP_S = 3600.0
_LIMIT = 200
# Events of one kind within this time are one.
_TOGETHER_S = 60.0


class EventLog:
    """The events. Times: at_s monotonic, wall_s Unix time."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, EventRow]] = deque(maxlen=_LIMIT)

    def add(self, text: str, level: str, at_s: float, wall_s: float) -> None:
        """Record an event. level: good, warn or bad."""
        self._events.append((at_s, "", EventRow(at_s=wall_s, text=text, level=level)))

    def count(self, kind: str, number: int, at_s: float, wall_s: float) -> None:
        """Record so many bad events of a kind, together with those just before."""
        for before_s, of_kind, row in reversed(self._events):
            if at_s - before_s > _TOGETHER_S:
                break
            if of_kind == kind:
                row.count += number
                return
        row = EventRow(at_s=wall_s, text=kind, level="bad", count=number)
        self._events.append((at_s, kind, row))

    def rows(self, at_s: float) -> list[EventRow]:
        """Return those of the last hour, the newest first."""
        while self._events and at_s - self._events[0][0] > KEEP_S:
            self._events.popleft()
        return [row for _, _, row in reversed(self._events)]

    def counted(self, kind: str, at_s: float, within_s: float = KEEP_S) -> int:
        """Return how many of a kind there were lately."""
        since_s = at_s - within_s
        return sum(row.count for at_s, of, row in self._events if of == kind and at_s >= since_s)
