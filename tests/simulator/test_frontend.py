"""The serial stage before the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.simulator.frontend import FrontEnd


@pytest.mark.parametrize(
    ("processes", "ends"),
    [
        (1, [1.0, 3.0, 3.5, 10.5]),
        (2, [1.0, 2.0, 1.5, 10.5]),
        (9, [1.0, 2.0, 0.5, 10.5]),
    ],
)
def test_bodies_pass_one_after_the_other(processes: int, ends: list[float]) -> None:
    front = FrontEnd(100.0, processes)
    arrivals = [(0.0, 100), (0.0, 200), (0.0, 50), (10.0, 50)]
    assert [front.enter(now, size) for now, size in arrivals] == ends


def test_no_rate_is_instant() -> None:
    front = FrontEnd(None, 1)
    assert [front.enter(3.0, 10**9), front.enter(3.0, 1)] == [3.0, 3.0]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_never_more_than_the_processes_at_once_and_none_idle(
    gaps: list[tuple[int, int]], processes: int
) -> None:
    front, now = FrontEnd(1.0, processes), 0.0
    spans: list[tuple[float, float, float]] = []
    for gap, size in gaps:
        now += gap
        end_s = front.enter(now, size)
        spans.append((now, end_s - size, end_s))
    for arrived_s, start_s, _ in spans:
        busy = sum(start <= start_s < end for _, start, end in spans)
        assert busy <= processes
        if start_s > arrived_s:
            # Just before it started, every process was at work.
            before_s = start_s - 0.5
            assert sum(start <= before_s < end for _, start, end in spans) == processes
    starts = [start_s for _, start_s, _ in spans]
    assert starts == sorted(starts)
