"""A starved gateway that refuses or breaks off has not served."""

import pytest

from bench.loads.openloop import Call
from bench.studies import starvation
from bench.tools.command_line import Options


def call(due_s: float, first_s: float, status: int = 200, *, whole: bool = True) -> Call:
    return Call(due_s, due_s, due_s + first_s, due_s + first_s + 0.1, status, whole=whole)


@pytest.mark.parametrize(
    ("odd", "timed_out", "unserved"),
    [
        pytest.param(call(0.0, 0.001), 0.0, 0, id="well"),
        pytest.param(call(0.0, 1.5), 0.1, 0, id="late"),
        pytest.param(call(0.0, 0.001, 503), 0.1, 1, id="refused"),
        pytest.param(call(0.0, 0.001, whole=False), 0.1, 1, id="broken off"),
        pytest.param(call(2.5, 0.001, 503), 0.1, 1, id="refused at the end"),
        pytest.param(Call(0.0), 0.1, 1, id="never answered"),
    ],
)
def test_what_is_not_served_timed_out(odd: Call, timed_out: float, unserved: int) -> None:
    calls = [*(call(n / 10, 0.01) for n in range(9)), odd]
    made = starvation.level(0.5, calls, 3.0, 0.1, 0.4, [])
    assert (made.timed_out, made.unserved) == (timed_out, unserved)
    needed = starvation.finding({}, [made], "by a quota").numbers["cores_needed"]
    assert needed == (None if timed_out else 0.5)


def test_no_prompt_is_sent_twice() -> None:
    sent = [
        body
        for stretch in starvation.stretches(Options())
        for body in starvation.prompts(stretch.name, 12)
    ]
    assert len(set(sent)) == len(sent) == 12 * 5


def test_a_refusal_is_no_quick_first_token() -> None:
    made = starvation.level(0.5, [call(0.0, 0.001, 503)] * 10, 3.0, 0.1, 0.4, [])
    assert (made.first_p50_ms, made.timed_out) == (3_000.0, 1.0)
