"""Arrivals compare the places to encode with the same encoder."""

import msgspec

from bench.loads.arrival_times import Arrival
from bench.loads.generator import Latency
from bench.loads.phases import Phase
from bench.studies import arrivals
from bench.tools.watched import Late


def phase(prompts_ms: float, plain_ms: float) -> Phase:
    flows = {
        name: Latency(10, 0, 0, ms, ms, ms)
        for name, ms in (("prompts", prompts_ms), ("plain", plain_ms))
    }
    late = Late(p50_ms=0.1, p99_ms=1.0, max_ms=2.0, blocked=0.0)
    return Phase(flows, {}, late, {}, cpu_s=1.0, wall_s=2.0, started_s=0.0, remarks=[])


def test_the_inline_row_has_a_ladder_with_its_encoder() -> None:
    ladder = arrivals.GATEWAYS[arrivals.SAME_ENCODER]
    inline = arrivals.GATEWAYS[arrivals.INLINE]
    differ = {name for name in ladder | inline if ladder.get(name) != inline.get(name)}
    assert differ == {"thread_hop_s", "stall_budget_s"}


def test_the_ladder_is_judged_by_that_row() -> None:
    got = {
        "as shipped, bursty": phase(9.0, 1.0),
        "as shipped, even": phase(2.0, 1.0),
        "with tokenizers, bursty": phase(20.0, 4.0),
        "inline, bursty": phase(30.0, 8.0),
    }
    asked = [Arrival(0.0, 100), Arrival(1.0, 100), Arrival(3.0, 100)]
    made = arrivals.finding({}, "made here", asked, asked, got, 6.0)
    assert [shape.holds for shape in made.shapes] == [True, False]
    assert msgspec.json.encode(made)
