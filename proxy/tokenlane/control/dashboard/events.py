"""What happened to the gateway in the last hour, for people. Pure: the time is an argument.

Invariants:
- Bounded by age and in number. Events of one kind that follow each other closely are one, counted.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tokenlane.control.dashboard.live import EventRow

KEEP_S = 3600.0
_LIMIT = 200
# Events of one kind within this time are one.
_TOGETHER_S = 60.0


class EventLog:
    """The events. Times: at_s monotonic, wall_s Unix time."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, EventRow]] = deque(maxlen=_LIMIT)
        self._troubles: dict[str, set[str]] = {}

    def add(self, text: str, level: str, at_s: float, wall_s: float) -> None:
        """Record an event. level: good, warn or bad."""
        self._events.append((at_s, "", EventRow(at_s=wall_s, text=text, level=level)))

    def troubles(
        self, now: Mapping[str, str], over: str, at_s: float, wall_s: float
    ) -> AbstractSet[str]:
        """Record which replicas have a trouble since the last look, and which have none any more.
        now: by replica, what it is. over: what it is when it ends; the trouble goes by this name.
        Return the new ones."""
        before = self._troubles.get(over, set())
        for name in now.keys() - before:
            self.add(f"{name}: {now[name]}", "warn", at_s, wall_s)
        for name in before - now.keys():
            self.add(f"{name}: {over}", "good", at_s, wall_s)
        self._troubles[over] = set(now)
        return now.keys() - before

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
