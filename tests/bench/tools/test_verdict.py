"""The verdict speaks in the known thresholds, and of what was measured only."""

import re

import pytest

from bench.tools import verdict
from bench.tools.finding import Finding, Shape
from tests.deploy.rules import alerts


def finding(name: str, numbers: dict[str, float | None], *shapes: bool | None) -> Finding:
    made = [Shape(f"{name} {n}", holds, "") for n, holds in enumerate(shapes)]
    return Finding(name=name, title="", machine={}, numbers=numbers, shapes=made)


@pytest.mark.parametrize(
    ("rate", "word"),
    [(0.71, "caching works"), (0.70, "caching helps"), (0.50, "caching helps"),
     (0.49, "the pool is needed")],
)  # fmt: skip
def test_hit_rates(rate: float, word: str) -> None:
    assert word in verdict.hits(rate)


@pytest.mark.parametrize(("share", "word"), [(0.009, "free"), (0.011, "blocked")])
def test_blocking(share: float, word: str) -> None:
    assert word in verdict.blocking(share)


def test_the_bench_is_as_strict_as_the_alerts_or_stricter() -> None:
    expr = alerts()["TokenlanePoolNeeded"]["expr"]
    beats, time, hits = (float(one) for one in re.findall(r"[<>] ([\d.]+)", expr))
    assert hits == verdict.HITS_POOL
    assert min(beats, time) >= verdict.BLOCKING_SHARE
    assert alerts()["TokenlaneLoopBlocked"]["expr"].split() == expr.split()[1:11]


def test_nothing_measured_nothing_said() -> None:
    assert verdict.lines({}, {}) == []
    assert verdict.lines({"cache": finding("cache", {"hit_rate": None})}, {}) == []


def test_all_of_it() -> None:
    limited = Finding(name="floor", title="", machine={},
                      remarks=["x: the load generator was at its limit (…)"])  # fmt: skip
    blocked: dict[str, float | None] = {
        "inline blocked": 0.5,
        "+ permit blocked": 0.02,
        "as shipped blocked": 0.0,
    }
    said = verdict.lines(
        {
            "cache": finding("cache", {"hit_rate": 0.9}),
            "ablation": finding("ablation", blocked, True, False, None),
            "starvation": finding("starvation", {"cores_needed": 0.5}),
            "floor": limited,
        },
        {"arrivals": "no file"},
    )
    text = "\n".join(said)
    for part in ("caching works", "50.0% of the time in stalls above 5 ms: the loop is blocked",
                 "the same encoder and short queues, at its worst load: 2.0%",
                 "the loop is free", "from 0.5 core(s) up", "1 of 2 curves",
                 "ablation (ablation 1)",
                 "at its limit in parts of: floor", "not measured here: arrivals"):  # fmt: skip
        assert part in text
