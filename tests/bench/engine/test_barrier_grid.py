"""New prompts of the grid are sent once; what there is no time for is named."""

import pytest

from bench.engine.barrier_grid import Spot, finding, new_count, sent_once
from bench.loads.clients import Served
from bench.loads.closed_loop import Call, Plan
from bench.tools import machine
from bench.tools.processes import BenchError


@pytest.mark.parametrize(
    ("spot", "per_s"),
    [
        pytest.param(Spot(8, 0.0, 250), 851, id="the fastest rows of docs/engine.md"),
        pytest.param(Spot(32, 0.9, 250), 1_113, id="by ids"),
        pytest.param(Spot(32, 0.9, 1_000), 753, id="longer"),
        pytest.param(Spot(32, 0.9, 4_000), 120, id="longest"),
    ],
)
def test_new_prompts_last_for_the_fastest_server_seen(spot: Spot, per_s: float) -> None:
    assert new_count(spot, 2.0 + 1.0) > 2.0 * per_s + 2 * spot.clients


def test_known_prompts_in_a_run_of_new_ones_are_an_error() -> None:
    calls = [Call(turn, turn, turn + 1.0, 200, whole=True) for turn in range(3)]
    got = Served(1.0, 1.0, 1.0, 0, {}, calls, settled=calls)
    few, enough = (Plan(1, "/", [b"1"] * count, 1, 1.0) for count in (2, 3))
    with pytest.raises(BenchError, match="3 requests of 2 new prompts, so some were known"):
        sent_once(Spot(1, 0.9, 250), few, got)
    assert sent_once(Spot(1, 0.9, 250), enough, got) is got
    assert sent_once(Spot(1, 1.0, 250), few, got) is got


def test_a_grid_cut_short_shows_what_it_has_and_names_the_rest() -> None:
    run = Served(1.0, 1.0, 1.0, 0, {"others": 0.0}, [], settled=[])
    measured = [Spot(8, 1.0, 250), Spot(8, 0.0, 250), Spot(1, 1.0, 250)]
    left = Spot(8, 0.0, 16_000)
    found = finding(machine.facts(), dict.fromkeys(measured, (run, run)), "about", [left])
    shown = [row[0] for row in found.tables[0].rows]
    assert shown == ["1, 100%, 250", "8, 0%, 250", "8, 100%, 250"]
    assert found.remarks[0] == "8 clients, 0% hits, 16,000 tokens: not measured, the time was over"
    (answer,) = found.answers
    assert "1 client at 100% hits nowhere; 8 clients at 100% hits nowhere" in answer
    assert "8 clients at 0%" not in answer
