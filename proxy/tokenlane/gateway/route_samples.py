"""Samples of routed requests: a few a second, for the live page.

Invariants:
- A sample is taken of a request that is recorded anyway, and only while some are wanted: a busy
  worker pays for as many as an idle one.
- Numbers and words only; nothing of a prompt or an answer.
"""

import time
from heapq import nsmallest
from typing import TYPE_CHECKING

from tokenlane.relay.usage import cached_tokens_of
from tokenlane.routing.decision import Decision
from tokenlane.telemetry.routing_sample import CandidateSample, RoutingSample

if TYPE_CHECKING:
    from tokenlane.gateway.request_record import RequestRecord

CANDIDATE_LIMIT = 8


def _candidates(decision: Decision) -> tuple[CandidateSample, ...]:
    """Return the cheapest candidates, the chosen one among them."""
    costs, best = decision.costs, decision.best
    places = nsmallest(
        CANDIDATE_LIMIT, range(len(costs)), key=lambda place: (costs[place], place != best)
    )
    if best not in places:
        places[-1] = best
    rows = [(decision.row(place), decision.others(place)) for place in places]
    return tuple(
        CandidateSample(
            row.slot, row.cached_tokens, row.load.requests, row.load.queued_tokens, row.cost, others
        )
        for row, others in rows
    )


def sample_of(record: "RequestRecord", decision: Decision, status: int) -> RoutingSample:
    """Return the sample of a finished request."""
    tokens, relay = record.tokens, record.relay
    usage = relay.usage if relay is not None else None
    first_token_s = relay.first_token_s if relay is not None else 0.0
    return RoutingSample(
        at_s=time.time(),
        model=record.model,
        policy=decision.policy,
        reason=decision.reason.value,
        slot=decision.choice.slot,
        candidates=_candidates(decision),
        candidate_count=len(decision.costs),
        exact=decision.exact,
        prompt_tokens=decision.query.prompt_tokens,
        cached_tokens=decision.choice.cached_tokens,
        actual_cached_tokens=cached_tokens_of(usage) if usage is not None else None,
        rung=tokens.rung.value if tokens is not None else None,
        tokenize_s=tokens.run_s + tokens.queue_s if tokens is not None else 0.0,
        ttft_s=first_token_s - record.started_s if first_token_s else None,
        duration_s=record.ended_s - record.started_s,
        status=status,
        outcome=record.outcome,
    )
