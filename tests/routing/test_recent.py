"""Recent work fades, and those never chosen are in no order."""

from random import Random

import pytest

from tokenlane.routing.recent import HALF_LIFE_S, RecentWork


def tokens(recent: RecentWork, slot: int, now: float) -> float:
    return recent.weight(slot) * recent.scale(now)


@pytest.mark.parametrize("start", [0.0, 10.0, 1e5, 1e7])
def test_work_adds_up_and_fades_by_half(start: float) -> None:
    recent = RecentWork(Random(1))
    recent.chosen(0, 1000, now=start)
    recent.chosen(0, 1000, now=start)
    assert tokens(recent, 0, start) == pytest.approx(2000)
    assert tokens(recent, 0, start + HALF_LIFE_S) == pytest.approx(1000)
    recent.chosen(0, 500, now=start + HALF_LIFE_S)
    assert tokens(recent, 0, start + HALF_LIFE_S) == pytest.approx(1500)
    assert tokens(recent, 1, start) == 0
    recent.remove(0)
    assert tokens(recent, 0, start) == 0


def test_work_stays_comparable_for_ever() -> None:
    recent = RecentWork(Random(1))
    for hour in range(0, 24 * 365 * 50, 7):
        recent.chosen(hour % 2, 100, now=3600.0 * hour)
    now = 3600.0 * hour
    assert tokens(recent, hour % 2, now) == pytest.approx(100)
    assert tokens(recent, 1 - hour % 2, now) == pytest.approx(0, abs=1e-9)


def test_choices_are_ordered_and_come_after_those_never_chosen() -> None:
    recent = RecentWork(Random(1))
    for slot in (2, 0, 2):
        recent.chosen(slot, 1, now=0.0)
    assert recent.chosen_at(1) < 0 < recent.chosen_at(0) < recent.chosen_at(2)
    assert recent.chosen_at(1) == recent.chosen_at(1)


def test_workers_that_start_together_begin_with_different_replicas() -> None:
    firsts = {min(range(4), key=RecentWork(Random(seed)).chosen_at) for seed in range(50)}
    assert firsts == {0, 1, 2, 3}
