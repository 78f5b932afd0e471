"""What a replica costs a request, in tokens, and when two costs are the same.

Invariants:
- Prices are tokens to be computed before this request's first token, so every policy that
  counts them can be compared in one table.
- A tie is settled by (load, recent work, least recently chosen), never by position in a list.
"""

from collections.abc import Sequence
from typing import Final

from tokenlane.routing.decision import Candidates, Decision, History, Query, Reason

# Two costs closer than this are one cost. A chat template's first tokens, alike in all prompts,
# would otherwise bind every cold conversation to whichever replica saw one first, while the
# others idle with empty caches: one shared block of 16 tokens sent all of a 20-session agent
# trace to one of four replicas. The share keeps a tie small beside what the prompt costs
# anyway; the cap, about 25 ms of prefill at 10k tokens/s, keeps it small in itself. On a trace
# under load it moves hits and mean TTFT by about 1 %.
TIE_SHARE: Final = 1 / 16
TIE_LIMIT_TOKENS: Final = 256

# A prompt of which nobody holds more than this begins something new, and goes where there is room.
# Else a beginning that all conversations share keeps a quiet fleet's new ones where it was seen
# first: in the minute after a restart one replica of four had up to twice its share of the work,
# with this at most 1.14 times. On a trace under load it moves the mean TTFT by under 1 %.
COLD_SHARE: Final = 1 / 4
COLD_LIMIT_TOKENS: Final = 2048


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


def cold_limit_tokens(query: Query) -> float:
    """A prompt of which no more than this is held is as good as new (tokens)."""
    return min(COLD_SHARE * query.prompt_tokens, COLD_LIMIT_TOKENS)


def least(costs: Sequence[float]) -> float:
    """The lowest of these: at least one. (The builtin compares objects.)"""
    lowest = costs[0]
    for cost in costs:
        lowest = min(lowest, cost)
    return lowest


def most(counts: Sequence[int]) -> int:
    """The highest of these: at least one."""
    highest = counts[0]
    for count in counts:
        highest = max(highest, count)
    return highest


def idlest(among: Candidates, places: Sequence[int]) -> int:
    """Of these places the least busy, then the least used, then the one chosen longest ago."""
    queued_tokens, requests, slots = among.queued_tokens, among.requests, among.slots
    best = places[0]
    for place in places[1:]:
        busier = queued_tokens[place] - queued_tokens[best] or requests[place] - requests[best]
        # What history says is asked of those alone that are equally busy.
        if busier < 0 or (busier == 0 and _less_used(among.history, slots[place], slots[best])):
            best = place
    return best


def _less_used(history: History, slot: int, other: int) -> bool:
    """Whether less was sent to this slot than to the other, or as much, and longer ago."""
    work = history.weight(slot) - history.weight(other)
    return work < 0.0 or (work == 0.0 and history.chosen_at(slot) < history.chosen_at(other))


def decide(
    policy: str,
    query: Query,
    among: Candidates,
    costs: Sequence[float],
    best: int,
    reason: Reason,
) -> Decision:
    """A decision, with the words that outrank a policy's own."""
    if query.inexact is not None:
        reason = query.inexact
    elif len(among.slots) == 1:
        reason = Reason.ONLY_ONE
    return Decision(policy, reason, query, among, costs, best)
