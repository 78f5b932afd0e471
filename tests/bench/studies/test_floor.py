"""The floor counts what was served."""

import pytest

from bench.loads.openloop import Call
from bench.studies import floor
from bench.tools.processes import BenchError


def call(due_s: float, status: int = 200, *, whole: bool = True) -> Call:
    return Call(due_s, due_s, due_s + 0.01, due_s + 0.01, status, whole=whole)


def test_refusals_and_halves_are_not_served() -> None:
    calls = [call(0.0), call(1.0), call(2.0, 503), call(3.0, whole=False)]
    made = floor.sample("x", calls, 5.0, 0.1, [])
    assert made.served == 2
    assert made.waited_ms == pytest.approx([10, 10, 3_000, 2_000])
    assert made.unmet_ms == pytest.approx([10, 10, 3_000])


def test_nothing_served_is_an_error() -> None:
    with pytest.raises(BenchError, match="x answered no request with 200"):
        floor.sample("x", [call(0.0, 503)], 5.0, 0.1, [])
