"""A decision as a sentence."""

import pytest

from tokenlane.control.dashboard.reasons import sentence
from tokenlane.routing.decision import Reason
from tokenlane.telemetry.routing_sample import CandidateSample, RoutingSample


def sample(reason: str, *rows: CandidateSample, slot: int = 0) -> RoutingSample:
    return RoutingSample(
        at_s=0.0,
        model="m",
        policy="affinity",
        reason=reason,
        slot=slot,
        candidates=rows,
        candidate_count=len(rows),
        exact=True,
        prompt_tokens=5000,
        cached_tokens=0,
        actual_cached_tokens=None,
        rung="threads",
        tokenize_s=0.0,
        ttft_s=None,
        duration_s=1.0,
        status=200,
        outcome="ok",
    )


def name(slot: int) -> str:
    return f"host-{slot}"


OWN, OTHER, THIRD = (
    CandidateSample(0, 4096, 3, 100, 914.0),
    CandidateSample(1, 4608, 9, 50_000, 5392.0),
    CandidateSample(2, 16, 0, 0, 4984.0),
)

LEAST_BUSY = "it is the least busy of 3 (3 in flight, 100 tokens queued)"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("prefix", "it holds 4,096 of 5,000 prompt tokens; the next best, host-1, holds 4,608"),
        ("spill", "host-1 holds 4,608 tokens but is too busy (9 in flight, 50,000 tokens queued)"),
        ("cold", f"no replica holds a prefix worth following: {LEAST_BUSY}"),
        ("least-load", LEAST_BUSY),
        ("of-another-version", "of-another-version"),
    ],
)
def test_sentences(reason: str, said: str) -> None:
    assert sentence(sample(reason, OWN, OTHER, THIRD), name) == said


def test_whose_load_it_was() -> None:
    busy = CandidateSample(0, 0, 9, 100, 1.0, 4)
    said = sentence(sample("least-load", busy, OTHER), name)
    assert "(9 in flight (4 of other gateways), 100 tokens queued)" in said


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("rows", [(), (OWN,), (OTHER,), (OWN, OTHER)])
def test_every_reason_says_something(reason: Reason, rows: tuple[CandidateSample, ...]) -> None:
    said = sentence(sample(reason.value, *rows), name)
    assert said
    if len(rows) == 2:
        assert said != reason.value
