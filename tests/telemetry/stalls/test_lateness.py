"""The rolling window of lateness: right to 1 %, and only of its time."""

import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.telemetry.stalls.lateness import QUANTILES, LatenessWindow


def packed(*late_s: float) -> bytes:
    return array.array("f", late_s).tobytes()


def test_nothing() -> None:
    window = LatenessWindow()
    window.add(b"", 0.0)
    assert window.summary(1.0) == {"beats": 0, "max_s": 0.0, **dict.fromkeys(QUANTILES, 0.0)}


def test_old_beats_leave_the_window() -> None:
    window = LatenessWindow(60.0)
    for second in range(100):
        window.add(packed(0.5 if second < 20 else 0.001), float(second))
    assert window.summary(99.0)["max_s"] < 0.0011
    assert 50 <= window.summary(99.0)["beats"] <= 60
    assert window.summary(500.0)["beats"] == 0
    window.add(packed(0.002), 1000.0)
    assert window.summary(1000.0)["beats"] == 1


def test_half_a_number_is_cut_off_and_an_hour_is_counted() -> None:
    window = LatenessWindow()
    window.add(packed(3600.0) + b"xy", 0.0)
    assert window.summary(0.0)["beats"] == 1
    assert window.summary(0.0)["max_s"] >= 600.0


@given(st.lists(st.floats(0.0001, 10.0), min_size=1, max_size=200))
def test_quantiles(late_s: Sequence[float]) -> None:
    window = LatenessWindow()
    window.add(packed(*late_s), 5.0)
    summary = window.summary(5.0)
    ordered = sorted(late_s)
    assert summary["beats"] == len(ordered)
    for name, quantile in QUANTILES.items():
        rank = max(1, int(quantile / 100 * len(ordered) + 0.5))
        lower, upper = ordered[rank - 1], ordered[min(rank, len(ordered) - 1)]
        assert lower * 0.98 - 2e-6 <= summary[name] <= upper * 1.02 + 2e-6
    assert abs(summary["max_s"] - ordered[-1]) <= ordered[-1] * 0.02 + 2e-6
