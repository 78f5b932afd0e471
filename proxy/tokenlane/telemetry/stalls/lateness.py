"""How late a loop's heartbeats were over a rolling window: an HDR histogram in slices.

Invariants:
- Used where no request waits (the control plane), because recording and percentiles are Python
  loops.
- The last `window_s` count, to the length of one slice; memory does not grow with the beats.
- A slice's histogram is used again: each is a cycle of objects with 24 KB of counts, which only a
  full pass of the collector would free, and those are rare in a process at rest.
"""

import array
from collections import Counter, deque

from hdrh.histogram import HdrHistogram

WINDOW_S = 60.0
_SLICES = 6
_LIMIT_US = 600_000_000
_SIGNIFICANT_FIGURES = 2
QUANTILES = {"p50_s": 50.0, "p90_s": 90.0, "p99_s": 99.0, "p99_9_s": 99.9}


def _histogram() -> HdrHistogram:
    return HdrHistogram(1, _LIMIT_US, _SIGNIFICANT_FIGURES)


class LatenessWindow:
    """One loop's. Times are any clock that only rises, in seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._slice_s = window_s / _SLICES
        self._slices: deque[tuple[int, HdrHistogram]] = deque()
        self._spare: list[HdrHistogram] = []
        self._whole = _histogram()

    def add(self, lateness: bytes, now_s: float) -> float | None:
        """Add the beats that came now. lateness: packed float32 seconds (what is no whole number of
        them is cut off). Return the worst."""
        packed = array.array("f")
        packed.frombytes(lateness[: len(lateness) // packed.itemsize * packed.itemsize])
        if not packed:
            return None
        number = self._expire(now_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, self._spare.pop() if self._spare else _histogram()))
        histogram = self._slices[-1][1]
        for late_us, count in Counter(int(late_s * 1e6) for late_s in packed).items():
            histogram.record_value(min(late_us, _LIMIT_US), count)
        return max(packed)

    def summary(self, now_s: float) -> dict[str, float]:
        """Return `beats`, and the QUANTILES and `max_s` of their lateness in seconds, to 1 %."""
        self._expire(now_s)
        whole = self._whole
        whole.reset()
        for _, histogram in self._slices:
            whole.add(histogram)
        beats = whole.get_total_count()
        found = whole.get_percentile_to_value_dict(list(QUANTILES.values())) if beats else {}
        summary: dict[str, float] = {"beats": beats}
        for name, quantile in QUANTILES.items():
            summary[name] = found.get(quantile, 0) / 1e6
        summary["max_s"] = whole.get_max_value() / 1e6 if beats else 0.0
        return summary

    def _expire(self, now_s: float) -> int:
        """Drop expired slices. Return the number of the current slice."""
        number = int(now_s // self._slice_s)
        while self._slices and self._slices[0][0] <= number - _SLICES:
            _, histogram = self._slices.popleft()
            histogram.reset()
            self._spare.append(histogram)
        return number
