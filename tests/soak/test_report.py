"""A soak's report: memory that rises is seen through all that work takes and gives back."""

import random
from collections.abc import Callable

import pytest

from tests.soak.report import FULL_AFTER_S, Report

MB = 1e6
HOUR_S = 3600


def rising(size: Callable[[float], float], minutes: int = 60) -> float:
    """What an hour's report says of a process that has `size` MB at a second."""
    points = [(float(at_s), int(size(at_s) * MB)) for at_s in range(0, 60 * minutes, 3)]
    return Report(memory={"worker": points}).rising_mb_per_h("worker")


def test_what_fills_at_first_and_is_full_does_not_rise() -> None:
    assert abs(rising(lambda at_s: 100 + 200 * min(at_s / FULL_AFTER_S, 1.0))) < 0.1


def test_what_work_takes_for_a_while_is_no_rise() -> None:
    draw = random.Random(1)
    assert abs(rising(lambda _: 100 + draw.choice((0, 0, 5, 50, 150)))) < 1.0


def test_what_is_given_back_and_soon_taken_again_is_no_rise() -> None:
    def given_back(at_s: float) -> float:
        return max(0.0, 60 - (at_s - 900) / 5) if at_s > 900 else 0.0

    assert abs(rising(lambda at_s: 100 - given_back(at_s))) < 1.0


def test_what_comes_back_all_the_time_is_a_rise() -> None:
    assert rising(lambda at_s: 100 - 60 * (at_s > 900) + min(at_s / 60, 55)) > 10.0


@pytest.mark.parametrize("mb_per_h", [12.0, 40.0, 150.0])
def test_a_leak_is_seen_under_it(mb_per_h: float) -> None:
    draw = random.Random(2)
    found = rising(lambda at_s: 100 + mb_per_h * at_s / HOUR_S + draw.choice((0, 0, 5, 50, 150)))
    assert found == pytest.approx(mb_per_h, rel=0.15)
    assert found > 10.0


def test_a_short_run_says_nothing() -> None:
    assert rising(lambda at_s: at_s, minutes=5) == 0.0
