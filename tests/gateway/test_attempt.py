"""What an attempt says of itself. No socket."""

from tests.routing.test_router import Bench
from tokenlane.gateway.attempt import AnswerHeaders


def test_the_lines_of_replicas_that_are_gone_are_dropped() -> None:
    bench, headers = Bench(1), AnswerHeaders()
    decision = bench.decide(bench.query(1, 100))
    for number in range(10_000):
        name = b"10.0.%d.%d:8000" % divmod(number, 250)
        lines = headers.of(name, decision, "ids")
        assert lines.startswith(b"x-tokenlane-replica: %b\r\n" % name)
        assert headers.of(name, decision, "ids") == lines
    assert len(headers._known) <= 5_000
