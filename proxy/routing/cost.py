"""What a replica costs a request, in tokens, and when two costs are the same.

Invariants:
- Prices are tokens to be computed before this request's first token, so every policy that
  counts them can be compared in one table.
- A tie is settled by (load, recent work, least recently chosen), never by position in a list.
"""

from collections.abc import Sequence

from proxy.routing.decision import Candidate, Choice, Decision, Query, Reason

# Two costs closer than this are one cost. A chat template's first tokens, alike in all prompts,
# would otherwise bind every cold conversation to whichever replica saw one first, while the
# others idle with empty caches: one shared block of 16 tokens sent all of a 20-session agent
# trace to one of four replicas. The share keeps a tie small beside what the prompt costs
# anyway; the cap, about 25 ms of prefill at 10k tokens/s, keeps it small in itself. On a trace
# under load it moves hits and mean TTFT by about 1 %.
TIE_SHARE = 1 / 16
TIE_LIMIT_TOKENS = 256


def cached_limit_tokens(query: Query) -> int:
    """The most that a replica can report as cached for this query.

    vLLM always computes the last token of a prompt, so at most the whole blocks of one token
    less can be cached.
    """
    return max(query.first_tokens - 1, 0) // query.block_tokens * query.block_tokens


def tie_tokens(query: Query) -> float:
    """Costs of this query that differ by no more than this are equal (tokens)."""
    share = TIE_SHARE * query.prompt_tokens
    if share >= TIE_LIMIT_TOKENS:
        return TIE_LIMIT_TOKENS
    return min(max(share, query.block_tokens), TIE_LIMIT_TOKENS)


def idleness(candidate: Candidate) -> tuple[int, int, float, float]:
    """Sort key among equals: the least busy, then the least used, then the longest ago."""
    load = candidate.load
    return load.queued_tokens, load.requests, candidate.recent_tokens, candidate.chosen_at


def decide(
    policy: str, query: Query, ordered: Sequence[tuple[float, Candidate]], reason: Reason
) -> Decision:
    """A decision from (cost, candidate) pairs in their order, with the words that outrank a
    policy's own."""
    if query.inexact is not None:
        reason = query.inexact
    elif len(ordered) == 1:
        reason = Reason.ONLY_ONE
    tokens = query.prompt_tokens
    return Decision(
        policy,
        reason,
        tuple(
            [
                Choice(one.slot, one.cached_tokens, tokens - one.cached_tokens, one.load, cost)
                for cost, one in ordered
            ]
        ),
        query.inexact is None,
    )
