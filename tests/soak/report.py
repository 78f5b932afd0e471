"""What a soak found, and the history of every request that a problem names."""

import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.soak.audit import Books

_MB = 1e6
# By then unique prompts have filled what is bounded.
FULL_AFTER_S = 600.0
_WINDOWS = 10
# What happened so long before or after a request ended is told with it.
_AROUND_S = 5.0


@dataclass
class Report:
    """What a soak found. problems: in sentences. happened: disturbances by kind. log: the same, by
    time (monotonic seconds). memory: seconds and bytes by process, and
    of the account. said: by the processes, of
    themselves, at rest before and after."""

    problems: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def disturbed(self, what: str) -> None:
        """Notes a disturbance that is over, or has begun."""
        self.happened[what] += 1
        self.log.append((time.monotonic(), what))

    def rising_mb_per_h(self, name: str) -> float:
        """Of what a process has, once its caches are full: of the least in each of some windows,
        by Theil and Sen's median of slopes. What work needs for a while is no rise."""
        points = [point for point in self.memory[name] if point[0] >= FULL_AFTER_S]
        if not points:
            return 0.0
        window_s = (points[-1][0] - points[0][0]) / _WINDOWS or 1.0
        least: dict[int, tuple[float, int]] = {}
        for at_s, size in points:
            window = min(int((at_s - points[0][0]) / window_s), _WINDOWS - 1)
            if window not in least or size < least[window][1]:
                least[window] = at_s, size
        minima = sorted(least.values())
        slopes = [
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for number, earlier in enumerate(minima)
            for later in minima[number + 1 :]
        ]
        return statistics.median(slopes) * 3600 / _MB if slopes else 0.0

    def held_mb(self, name: str) -> float:
        """What malloc has given out at the end, above what it had at first; 0 where nobody says."""
        first, last = (self.said[when][name]["malloc"].get("used", 0) for when in ("first", "last"))
        return float(last - first) / _MB

    def histories(self, books: Books) -> list[str]:
        """Of the requests that problems name: what every book has of them, and what went on."""
        named = set(re.findall(r"soak-\d+", "".join(self.problems)))
        told = []
        for asked in books.asked:
            if asked.id not in named:
                continue
            lines = [line for line in books.lines if line["request_id"] == asked.id]
            end_s = asked.ended_s or asked.sent_s
            went_on = [
                f"{what} {at_s - end_s:+.3f} s"
                for at_s, what in self.log
                if abs(at_s - end_s) < _AROUND_S
            ]
            kills = [
                f"{kill.since_s - end_s:+.3f} to {kill.at_s - end_s:+.3f} s"
                for kill in books.kills
                if kill.since_s - _AROUND_S < end_s < kill.at_s + _AROUND_S
            ]
            told.append(
                f"{asked}; ran {books.executions[asked.id]} times; written {lines}; from its end:"
                f" kills {kills}, disturbances {went_on}"
            )
        return told
