"""Only whole answers with 200 that come while load comes count as throughput."""

from bench.loads.openloop import Call, Result
from bench.loads.phases import throughput


def test_answers_count_while_load_comes() -> None:
    calls = [Call(0.0, 0.0, 0.1, 0.1, 200, whole=True), Call(0.9, 0.9, 2.5, 2.5, 200, whole=True)]
    assert throughput(Result({"x": calls}, 0.1, 3.0), 1.0) == {"x": 1.0}


def test_refusals_are_no_throughput() -> None:
    calls = [
        Call(0.0, 0.0, 0.1, 0.1, 503, whole=True),
        Call(0.0, 0.0, 0.1, 0.2, 200, whole=False),
        Call(0.0, 0.0, 0.1, 0.3, 200, whole=True),
    ]
    assert throughput(Result({"x": calls}, 0.1, 3.0), 1.0) == {"x": 1.0}
