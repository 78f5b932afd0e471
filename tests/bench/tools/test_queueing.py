"""Kingman's formula, held against the one queue whose wait is known exactly."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.loads.generator import poisson
from bench.tools.queueing import gaps_s, kingman_s, met_nobody, variation


def test_by_hand() -> None:
    assert kingman_s(0.5, 1.0, 1.0, 0.010) == pytest.approx(0.010)  # M/M/1 at one half
    assert kingman_s(0.9, 1.0, 0.0, 0.010) == pytest.approx(0.045)  # M/D/1
    assert kingman_s(0.0, 1.0, 1.0, 0.010) == 0.0
    assert kingman_s(1.0, 1.0, 1.0, 0.010) is None
    assert variation([1.0, 3.0]) == pytest.approx(0.5)
    assert variation([2.0]) is None
    assert variation([0.0, 0.0]) is None
    assert gaps_s([3.0, 1.0, 1.5]) == [0.5, 1.5]


def test_who_met_nobody() -> None:
    calls = [(5.0, 6.0), (0.0, 1.0), (0.5, 3.0), (2.0, 2.5), (3.0, 4.0)]
    assert met_nobody(calls) == [True, True, False, False, True]
    assert met_nobody([]) == []


@given(st.floats(0, 0.98), st.floats(0, 0.98), st.floats(0, 9), st.floats(0, 9))
def test_more_load_never_waits_less(one: float, other: float, come: float, serve: float) -> None:
    less, more = sorted((one, other))
    short, long = kingman_s(less, come, serve, 1.0), kingman_s(more, come, serve, 1.0)
    assert short is not None
    assert long is not None
    assert short <= long


def test_a_simulated_queue_waits_about_so_long() -> None:
    chooser = random.Random(1)
    due_s = poisson(80.0, 500.0, seed=3)
    assert len(due_s) == pytest.approx(40_000, rel=0.03)
    assert variation(gaps_s(due_s)) == pytest.approx(1.0, abs=0.05)
    free_s = waited_s = 0.0
    for at_s in due_s:
        begins_s = max(at_s, free_s)
        waited_s += begins_s - at_s
        free_s = begins_s + chooser.expovariate(1 / 0.010)
    wanted = kingman_s(0.8, 1.0, 1.0, 0.010)
    assert waited_s / len(due_s) == pytest.approx(wanted, rel=0.2)
