"""What the engine's experiments make of figures: shapes by ratios, and answers in words."""

from bench.engine import (
    barrier,
    barrier_grid,
    beside_text,
    cpu_bound,
    illusion,
    radix,
    starved_engine,
)
from bench.engine.barrier_grid import Spot
from bench.engine.cpu_bound import Setup, Step
from bench.loads.clients import Served
from bench.tools import machine
from bench.tools.finding import Finding, markdown, text

FACTS = machine.facts() | {"cores": 2}
PARTS = {"front end": 1.0, "engine": 0.5, "gateway": 0.2, "load": 0.1, "others": 0.3}


def served(per_s: float, p50_ms: float, p99_ms: float | None = None) -> Served:
    return Served(per_s, p50_ms, p99_ms or 2 * p50_ms, 0, PARTS, [], [])


def held(found: Finding) -> list[bool | None]:
    assert text(found)
    assert markdown(found)
    assert found.published
    return [one.holds for one in found.shapes]


def test_the_illusion_is_a_flat_rate_under_a_growing_tail() -> None:
    few, many = served(133.0, 100.0, 150.0), served(134.0, 2_000.0, 2_745.0)
    assert held(illusion.finding(FACTS, {20: few, 400: many}, "")) == [True, True, True]
    faster = served(300.0, 100.0, 160.0)
    assert held(illusion.finding(FACTS, {20: few, 400: faster}, ""))[:2] == [False, False]


def test_the_paradox_is_of_many_clients() -> None:
    cells = {("new", 20): 164.0, ("new", 400): 3_000.0, ("known", 20): 67.0}
    got: dict[tuple[str, int], tuple[Served, float | None]] = {
        key: (served(100.0, ms), 0.5) for key, ms in cells.items()
    }
    got["known", 400] = served(100.0, 1_780.0), 1.0
    assert held(radix.finding(FACTS, got, "")) == [True, True]
    got["known", 400] = served(1_000.0, 100.0), 1.0
    assert held(radix.finding(FACTS, got, "")) == [True, False]


def barriers(ids_per_s: float) -> Finding:
    ways = (barrier.TEXT, barrier.IDS, barrier.GATEWAY_TEXT, barrier.GATEWAY_IDS)
    rates = (100.0, ids_per_s, 90.0, ids_per_s)
    got = {name: {64: served(rate, 10.0)} for name, rate in zip(ways, rates, strict=True)}
    alone = {1: (served(70.0, 14.0), served(120.0, 8.0)),
             256: (served(2.0, 520.0), served(2.0, 518.0))}  # fmt: skip
    return barrier.finding(FACTS, got, alone, "")


def test_the_barrier_breaks_by_a_third() -> None:
    assert held(barriers(200.0)) == [True, True, True]
    assert held(barriers(110.0)) == [False, False, True]
    (answer,) = barriers(200.0).answers
    assert "both" in answer
    assert "2.00 times the requests" in answer


def test_ways_are_compared_round_by_round() -> None:
    rates = {
        barrier.TEXT: (100.0, 110.0, 90.0),
        barrier.IDS: (240.0, 900.0, 200.0),
        barrier.GATEWAY_TEXT: (90.0, 100.0, 110.0),
        barrier.GATEWAY_IDS: (220.0, 100.0, 230.0),
    }
    got = {name: [served(rate, 10.0) for rate in rounds] for name, rounds in rates.items()}
    found = beside_text.finding(FACTS, got, "")
    assert found.tables[0].rows[1][1:4] == [240.0, 200.0, 900.0]
    assert [one.rpartition(": ")[2] for one in found.remarks[:3]] == [
        "2.40 x (half of the rounds within 2.22 to 8.18)",
        "2.09 x (half of the rounds within 1.00 to 2.44)",
        "0.917 x (half of the rounds within 0.111 to 1.15)",
    ]
    assert markdown(found)


def test_from_where_on_ids_matter() -> None:
    gain = {
        Spot(1, 1.0, 250): 1.0, Spot(1, 1.0, 1_000): 1.4, Spot(1, 1.0, 4_000): 2.0,
        Spot(8, 0.0, 250): 1.5, Spot(8, 0.0, 4_000): 1.1,
    }  # fmt: skip
    where = barrier_grid.from_where(gain)
    assert where == {(1, 1.0): 1_000, (8, 0.0): None}
    said = barrier_grid.told(where)
    assert "1 client at 100% hits from 1,000 tokens on" in said
    assert "8 clients at 0% hits nowhere" in said
    got = {spot: (served(100.0, 1.0), served(100.0 * by, 1.0)) for spot, by in gain.items()}
    assert barrier_grid.finding(FACTS, got, "").answers == [said]


def stepped(p50_ms: float) -> Step:
    return Step(20.0, 200, 20.0, p50_ms, 2 * p50_ms, 0, PARTS, None, None)


def test_starved_text_is_slowed_more_than_ids() -> None:
    got = {
        "text": {2.0: stepped(50.0), 0.25: stepped(200.0)},
        "ids": {2.0: stepped(30.0), 0.25: stepped(40.0)},
    }
    assert held(starved_engine.finding(FACTS, got, "a cgroup quota", "")) == [True, True]
    got["ids"][0.25] = stepped(300.0)
    assert held(starved_engine.finding(FACTS, got, "stops", "")) == [True, False]
    assert starved_engine.sooner(stepped(2.0), stepped(1.0)).p50_ms == 1.0


def test_full_cores_cannot_judge_a_second_api_server() -> None:
    def steps(rate: float, cores: float) -> list[Step]:
        used = PARTS | {"engine": cores}
        return [
            Step(100.0, 400, rate, 1.0, 2.0, 0, used, None, "4 of 400 requests failed (503: 4)")
        ]

    setups = {Setup(api, workers): steps(100.0 * api, 0.1) for api in (1, 2) for workers in (1, 2)}
    assert held(cpu_bound.finding(FACTS, setups, "")) == [True]
    setups = {setup: steps(100.0, 1.5) for setup in setups}
    found = cpu_bound.finding(FACTS, setups, "")
    assert held(found) == [None]
    assert "more cores come first" in found.answers[0]
    assert found.remarks[0] == "1, 1, 100/s: 4 of 400 requests failed (503: 4)"
