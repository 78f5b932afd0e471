"""Rates: what counters did in a window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.dashboard.rates import Cells, Reading, Spread, Window, ratio
from tokenlane.telemetry.metrics import families

ROUTED, STAGE = families.ROUTED.name, families.STAGE.name
BUCKETS = len(families.STAGE.buckets) + 1


def window(old: Cells, new: Cells, span_s: float = 10.0) -> Window:
    return Window(Reading(100.0, old), Reading(100.0 + span_s, new))


def observed(total: float, **at: float) -> list[float]:
    counts = [0.0] * BUCKETS
    for place, count in at.items():
        counts[int(place[1:])] = count
    return [total, *counts]


def test_counters() -> None:
    old: Cells = {(ROUTED, ("affinity", "prefix")): [5.0], (ROUTED, ("affinity", "cold")): [2.0]}
    new: Cells = {
        (ROUTED, ("affinity", "prefix")): [25.0],
        (ROUTED, ("affinity", "cold")): [2.0],
        (ROUTED, ("affinity", "spill")): [10.0],  # new in this window
    }
    made = window(old, new)
    assert made.count(ROUTED) == 30
    assert made.per_s(ROUTED) == 3
    assert made.count(ROUTED, reason="prefix") == 20
    assert made.count(ROUTED, policy="affinity", reason="cold") == 0
    assert made.by(ROUTED, "reason") == {"prefix": 20, "cold": 0, "spill": 10}
    assert made.values(ROUTED, "reason") == ["cold", "prefix", "spill"]
    assert made.total(ROUTED) == 37
    assert made.total(ROUTED, reason="prefix") == 25


def test_what_is_not_counted_is_nothing() -> None:
    made = window({}, {("tokenlane_of_another_version_total", ("x",)): [5.0]})
    for name in ("tokenlane_of_another_version_total", ROUTED, "nothing"):
        assert made.count(name) == made.per_s(name) == made.total(name) == 0
        assert made.by(name, "reason") == {}
        assert made.values(name, "reason") == []
        spread = made.spread(name)
        assert (spread.count, spread.quantile(0.5)) == (0, None)
    assert window({}, {(ROUTED, ("a", "b")): [5.0]}).by(ROUTED, "no such label") == {}


def test_gauges_are_now_and_counters_never_go_back() -> None:
    gauge = families.CONNECTIONS.name
    made = window(
        {(gauge, ()): [9.0], (ROUTED, ("a", "b")): [9.0]},
        {(gauge, ()): [4.0], (ROUTED, ("a", "b")): [4.0]},
    )
    assert made.total(gauge) == 4
    assert made.count(gauge) == 0
    assert made.count(ROUTED) == 0


def test_histograms_by_label_and_all_together() -> None:
    old: Cells = {(STAGE, ("read",)): observed(1.0, b0=7)}
    new: Cells = {
        (STAGE, ("read",)): observed(3.0, b0=7, b3=2),
        (STAGE, ("route",)): observed(8.0, b5=2),
    }
    made = window(old, new)
    assert made.spread(STAGE, stage="read").count == 2
    everything = made.spread(STAGE)
    assert everything.count == 4
    assert everything.quantile(1.0) == families.STAGE.buckets[5]
    assert made.values(STAGE, "stage") == ["read", "route"]


@pytest.mark.parametrize(
    ("counts", "quantile", "expected"),
    [
        ((10, 0, 0), 0.5, 0.5),
        ((10, 0, 0), 1.0, 1.0),
        ((5, 5, 0), 0.75, 1.5),
        ((0, 10, 0), 0.5, 1.5),
        ((0, 0, 3), 0.5, 2.0),  # above the last bound
        ((1, 0, 0), 0.0, 0.0),
    ],
)
def test_quantiles(counts: tuple[float, ...], quantile: float, expected: float) -> None:
    assert Spread((1.0, 2.0), counts).quantile(quantile) == pytest.approx(expected)


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_in_order(counts: list[int], one: float, two: float) -> None:
    spread = Spread((1.0, 2.0, 4.0), counts)
    low, high = spread.quantile(min(one, two)), spread.quantile(max(one, two))
    if low is None or high is None:
        assert not any(counts)
    else:
        assert 0 <= low <= high <= 4.0


@pytest.mark.parametrize(
    ("part", "whole", "expected"), [(1, 4, 0.25), (0, 4, 0.0), (0, 0, None), (3, 0, None)]
)
def test_share(part: float, whole: float, expected: float | None) -> None:
    assert ratio(part, whole) == expected
