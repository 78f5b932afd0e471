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
        # One row each, compared in C: the cost, then cost.idleness, written out to save a call
        # per candidate. The slot only keeps a sort of candidates alike in everything from
        # comparing the candidates themselves.
        rows = []
        lowest, longest = float("inf"), 0
        for one in candidates:
            load, cached_tokens = one.load, one.cached_tokens
            cost = prompt_tokens - cached_tokens + alpha * load.queued_tokens
            idle = (load.queued_tokens, load.requests, one.recent_tokens, one.chosen_at, one.slot)
            rows.append((cost, idle, one))
            lowest = min(lowest, cost)
            longest = max(longest, cached_tokens)
        tie = tie_tokens(query)
        equal = lowest + tie
        ranked = sorted([(max(equal, cost), idle, cost, one) for cost, idle, one in rows])
        first_tokens = ranked[0][3].cached_tokens
        if longest - first_tokens > tie:
            reason = Reason.SPILL
        else:
            reason = Reason.PREFIX if first_tokens > tie else Reason.COLD
        return decide(self.name, query, [(row[2], row[3]) for row in ranked], reason)
