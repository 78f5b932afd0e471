"""What the overload bench makes of calls."""

from bench.experiments.overload import CAPACITY_PER_S, GOOD_S, row
from bench.loads.openloop import Call


def call(due_s: float, took_s: float, status: int) -> Call:
    return Call(due_s, fired_s=due_s, done_s=due_s + took_s, status=status, whole=True)


def test_a_row() -> None:
    calls = [
        *(call(second, 0.5, 200) for second in range(6)),
        call(1.0, GOOD_S + 0.1, 200),  # too late to be of use
        *(call(second, 0.001 * (second + 1), 503) for second in range(10)),
        call(2.0, 0.002, 429),
        call(3.0, 0.1, 502),
        Call(4.0),
    ]
    made = row(2.0, calls, 10.0)
    assert (made.offered_per_s, made.goodput_per_s, made.shed_per_s) == (2.0, 0.6, 1.1)
    assert 0.004 < made.shed_p50_s < 0.006
    assert 0.008 < made.shed_p99_s < 0.011
    assert made.others == 2


def test_an_answer_cut_off_after_its_200_is_no_goodput() -> None:
    cut = Call(0.0, 0.0, 0.01, 0.02, 200, whole=False)
    made = row(1.0, [call(0.0, 0.1, 200), cut], 1.0)
    assert (made.goodput_per_s, made.shed_per_s, made.others) == (1.0, 0.0, 1)


def test_the_fleet_is_set_to_300() -> None:
    assert round(CAPACITY_PER_S) == 300
