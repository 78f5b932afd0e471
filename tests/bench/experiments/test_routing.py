"""The routing bench measures what it says."""

import pytest

from bench.experiments import routing


def test_decisions_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "DECISIONS", 20)
    monkeypatch.setattr(routing, "PROMPT_TOKENS", 4000)
    row = routing.decisions(4)
    assert row["replicas"] == 4
    assert 0 < row["decision_p50_us"] <= row["decision_p99_us"]
    size = routing.index_of(50_000, 250)
    assert size["blocks"] == 50_000
    # Not more than a plain set of ints would take.
    assert size["estimated_bytes"] < 60 * size["blocks"]


def test_a_flood_and_those_beside_it() -> None:
    row = routing.shares(10)
    assert row["kept"] == "20 of 20"
    assert 0 < row["insertion_p50_us"] < row["turn_p50_us"] <= row["turn_max_us"]
    assert row["held_of_capacity"] <= 5
