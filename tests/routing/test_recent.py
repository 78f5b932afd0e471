"""Recent work fades, and those never chosen are in no order."""

from random import Random

import pytest

from proxy.routing.recent import HALF_LIFE_S, RecentWork


def test_work_adds_up_and_fades_by_half() -> None:
    recent = RecentWork(Random(1))
    recent.chosen(0, 1000, now=10.0)
    recent.chosen(0, 1000, now=10.0)
    assert recent.tokens(0, 10.0) == 2000
    assert recent.tokens(0, 10.0 + HALF_LIFE_S) == pytest.approx(1000)
    recent.chosen(0, 500, now=10.0 + HALF_LIFE_S)
    assert recent.tokens(0, 10.0 + HALF_LIFE_S) == pytest.approx(1500)
    assert recent.tokens(1, 99.0) == 0
    recent.remove(0)
    assert recent.tokens(0, 99.0) == 0


def test_choices_are_ordered_and_come_after_those_never_chosen() -> None:
    recent = RecentWork(Random(1))
    for slot in (2, 0, 2):
        recent.chosen(slot, 1, now=0.0)
    assert recent.chosen_at(1) < 0 < recent.chosen_at(0) < recent.chosen_at(2)
    assert recent.chosen_at(1) == recent.chosen_at(1)


def test_workers_that_start_together_begin_with_different_replicas() -> None:
    firsts = {min(range(4), key=RecentWork(Random(seed)).chosen_at) for seed in range(50)}
    assert firsts == {0, 1, 2, 3}
