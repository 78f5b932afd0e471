"""What a gateway that holds requests does with them, in simulated time."""

import gzip
import json
from pathlib import Path

import pytest

from bench.studies import lookahead
from bench.studies.lookahead import RULES, Rule
from tests.replay.workloads import conversations
from tokenlane.replay.run import FleetShape
from tokenlane.replay.trace import MOONCAKE_BLOCK_TOKENS as BLOCK
from tokenlane.replay.trace import Request, Trace, packed

SHAPE = FleetShape(2, cache_blocks=4000)


def clump(*blocks: int, at_s: float = 0.0) -> list[Request]:
    """Prompts that share nothing, at once, in blocks."""
    fresh = iter(range(1000 * int(at_s) + 1, 10**9))
    return [
        Request(at_s, BLOCK * count, 0, packed([next(fresh) for _ in range(count)]))
        for count in blocks
    ]


@pytest.mark.parametrize("name", RULES)
def test_everything_is_served_once(name: str) -> None:
    trace = conversations(12, 3, gap_s=0.3)
    served = lookahead.held(trace, SHAPE, RULES[name])
    assert sorted(one.request for one in served) == sorted(trace.requests)
    assert all(one.ttft_s > 0 for one in served)


@pytest.mark.parametrize("late", [False, True])
def test_the_shorter_go_first_as_far_as_their_lead_goes(late: bool) -> None:
    # Long ones fill both replicas, and as many are held when the short ones come.
    long = clump(*[100] * 8)
    trace = Trace("clumps", BLOCK, [*long, *clump(*[4] * 6, at_s=1.0)])

    def waited_s(weight: float | None) -> tuple[float, float]:
        served = lookahead.held(trace, SHAPE, Rule(late=late, weight=weight))
        short = [one.ttft_s for one in served if one.request.prompt_tokens == 4 * BLOCK]
        return max(short), max(one.ttft_s for one in served)

    in_order, shortest, leading = waited_s(0.0), waited_s(None), waited_s(3.0)
    assert shortest[0] < in_order[0]
    assert leading[0] < in_order[0]
    assert waited_s(0.1) == in_order


@pytest.mark.slow
def test_traces_of_each_kind_are_read(tmp_path: Path) -> None:
    arrivals = tmp_path / "a.csv.gz"
    arrivals.write_bytes(
        gzip.compress(
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
            b"2023-11-16 18:17:03.9799600,1030,10\n2023-11-16 18:17:04.9799600,30,8\n"
        )
    )
    first, second = lookahead.read(arrivals).requests
    assert (first.prompt_tokens, len(first.blocks) // 8, second.prompt_tokens) == (1030, 2, 30)
    assert second.arrival_s == pytest.approx(1.0)
    texts = tmp_path / "b.jsonl"
    row = {"timestamp": 5, "input": "one two three " * 40, "session_id": "s", "output": "four"}
    texts.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'timestamp': 9})}\n")
    first, second = lookahead.read(texts).requests
    assert first.blocks == second.blocks
    assert len(first.blocks) // 8 == first.prompt_tokens // 16 > 3


def test_a_clock_that_ticks_is_spread() -> None:
    trace = Trace("ticks", BLOCK, clump(*[1] * 50))
    spread = lookahead.spread(trace, 3.0)
    times = [one.arrival_s for one in spread.requests]
    assert times == sorted(times)
    assert 0.0 <= times[0] < 1.0
    assert 2.0 < times[-1] < 3.0
    assert lookahead.spread(trace, 0.0) == trace
