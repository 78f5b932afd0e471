"""A routed request as the live page shows it.

Invariants:
- Values are frozen; they cross the channel as they are.
"""

import msgspec


class CandidateSample(msgspec.Struct, frozen=True, array_like=True):
    """A replica as a routing decision saw it. Tokens; cost: in the policy's own measure. others:
    how many of the requests other gateways sent."""

    slot: int
    cached_tokens: int
    requests: int
    queued_tokens: int
    cost: float
    others: int = 0


class RoutingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a request that was routed.

    at_s: Unix time of its end. candidate_count: replicas that might have got it. exact: the prompt
    was known by its ids. cached_tokens: predicted, actual_cached_tokens: as the replica reported
    it. ttft_s: only of streams. rung: None where no ids were asked for.
    """

    at_s: float
    model: str
    policy: str
    reason: str
    candidate_count: int
    exact: bool
    prompt_tokens: int
    cached_tokens: int
    actual_cached_tokens: int | None
    rung: str | None
    tokenize_s: float
    ttft_s: float | None
    duration_s: float
    status: int
    outcome: str


class RoutingSample(RoutingFacts, frozen=True, kw_only=True):
    """One request that was routed, for people to look at. slot: of its replica. candidates: the
    cheapest first, a few of them."""

    slot: int
    candidates: tuple[CandidateSample, ...]
