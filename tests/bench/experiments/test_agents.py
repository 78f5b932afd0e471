"""The bench of sub-agents measures what it says."""

import pytest

from bench.experiments import agents


@pytest.mark.slow
def test_what_siblings_share_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "SEEDS", 1)
    late = agents.run((8, 6), "affinity, told by answers", 1)
    once = agents.run((8, 6), "affinity, no parents", 1)
    told = agents.run((8, 6), "affinity", 1)
    assert late.prefixes is not None
    assert once.prefixes is not None
    assert late.prefixes > 3
    assert 1 <= once.prefixes < 1.1
    assert max(once.took_mean_s, told.took_mean_s) < late.took_mean_s
    # One parent in an idle fleet: spreading is faster, though it computes more.
    alone = agents.run((1, 12), "affinity, no parents", 1)
    spread = agents.run((1, 12), "affinity", 1)
    assert spread.took_mean_s < alone.took_mean_s
    assert spread.computed_tokens > alone.computed_tokens


@pytest.mark.slow
def test_a_queue_that_knows_siblings_ends_parents_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "SEEDS", 1)
    monkeypatch.setattr(agents, "PLACES", 16)
    in_order = agents.run((8, 6), "affinity", 1, lead_s=0.0)
    together = agents.run((8, 6), "affinity", 1, lead_s=20.0)
    assert together.took_mean_s < in_order.took_mean_s
