"""How late a loop's heartbeats were over a rolling window: an HDR histogram in slices.

Invariants:
- Used where no request waits (the control plane), because recording and percentiles are Python
  loops.
- The last `window_s` count, to the length of one slice; memory does not grow, neither with the
  beats nor with time: each slice has a histogram of its own, which is used again.
"""

import array
from collections import Counter

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
        self._histograms = [_histogram() for _ in range(_SLICES)]
        # The number of the slice that each is of.
        self._numbers = [-_SLICES] * _SLICES
        self._whole = _histogram()

    def add(self, lateness: bytes, now_s: float) -> float | None:
        """Add the beats that came now. lateness: packed float32 seconds (what is no whole number of
        them is cut off). Return the worst."""
        packed = array.array("f")
        packed.frombytes(lateness[: len(lateness) // packed.itemsize * packed.itemsize])
        if not packed:
            return None
        number = int(now_s // self._slice_s)
        at = number % _SLICES
        histogram = self._histograms[at]
        if self._numbers[at] != number:
            self._numbers[at] = number
            histogram.reset()
        for late_us, count in Counter(int(late_s * 1e6) for late_s in packed).items():
            histogram.record_value(min(late_us, _LIMIT_US), count)
        return max(packed)

    def summary(self, now_s: float) -> dict[str, float]:
        """Return `beats`, and the QUANTILES and `max_s` of their lateness in seconds, to 1 %."""
        oldest = int(now_s // self._slice_s) - _SLICES + 1
        whole = self._whole
        whole.reset()
        for number, histogram in zip(self._numbers, self._histograms, strict=True):
            if number >= oldest:
                whole.add(histogram)
        beats = whole.get_total_count()
        found = whole.get_percentile_to_value_dict(list(QUANTILES.values())) if beats else {}
        summary: dict[str, float] = {"beats": beats}
        for name, quantile in QUANTILES.items():
            summary[name] = found.get(quantile, 0) / 1e6
        summary["max_s"] = whole.get_max_value() / 1e6 if beats else 0.0
        return summary
