"""affinity: to the replica that has the least to compute before this prompt's first token.

cost = own uncached tokens + alpha * queued uncached tokens. Below 1, alpha says that a warm cache
is worth some waiting: following the prefix also saves the work that everybody else waits for.
Replays of public traces put it between 0.05 and 0.1; at 1 (`min(queue + own)`) a quarter of the
hits is lost.

Costs within `tie_tokens` of the lowest are equal; among them, and further down the ranking,
the usual tie rule decides.
"""

from collections.abc import Sequence

from proxy.routing.cost import decide, tie_tokens
from proxy.routing.decision import Candidate, Decision, Query, Reason
from proxy.settings import RoutingSettings


class Affinity:
    """See the module's docstring."""

    name = "affinity"
    uses_prefix = True

    def __init__(self, settings: RoutingSettings) -> None:
        self._alpha = settings.alpha

    def rank(self, query: Query, candidates: Sequence[Candidate]) -> Decision:
        alpha, prompt_tokens = self._alpha, query.prompt_tokens
        costs = [
            prompt_tokens - one.cached_tokens + alpha * one.load.queued_tokens for one in candidates
        ]
        tie = tie_tokens(query)
        equal = min(costs) + tie
        # One tuple each, compared in C: the cost, then cost.idleness, written out to save a call
        # per candidate. The slot only keeps a sort of candidates alike in everything from
        # comparing the candidates themselves.
        rows = [
            (
                max(equal, cost),
                one.load.queued_tokens,
                one.load.requests,
                one.recent_tokens,
                one.chosen_at,
                one.slot,
                cost,
                one,
            )
            for cost, one in zip(costs, candidates, strict=True)
        ]
        rows.sort()
        ordered = [(row[-2], row[-1]) for row in rows]
        return decide(self.name, query, ordered, _reason(ordered[0][1], candidates, tie))


def _reason(first: Candidate, candidates: Sequence[Candidate], tie: float) -> Reason:
    longest = max([candidate.cached_tokens for candidate in candidates])
    if longest - first.cached_tokens > tie:
        return Reason.SPILL
    return Reason.PREFIX if first.cached_tokens > tie else Reason.COLD
