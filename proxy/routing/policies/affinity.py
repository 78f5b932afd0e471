"""affinity: to the replica that has the least to compute before this prompt's first token.

cost = own uncached tokens + alpha * queued uncached tokens. Below 1, alpha says that a warm cache
is worth some waiting: following the prefix also saves the work that everybody else waits for.
Replays of public traces put it between 0.05 and 0.1; at 1 (`min(queue + own)`) a quarter of the
hits is lost.

Costs within `tie_tokens` of the lowest are equal; among them the usual tie rule decides.
"""

from typing import ClassVar

from proxy.routing.cost import decide, idlest, tie_tokens
from proxy.routing.decision import Candidates, Decision, Query, Reason
from proxy.settings import RoutingSettings


class Affinity:
    """See the module's docstring."""

    name: ClassVar[str] = "affinity"
    uses_prefix: ClassVar[bool] = True

    def __init__(self, settings: RoutingSettings) -> None:
        self._alpha = settings.alpha

    def choose(self, query: Query, among: Candidates) -> Decision:
        alpha, prompt_tokens, cached = self._alpha, query.prompt_tokens, among.cached_tokens
        costs = [
            prompt_tokens - held + alpha * queued
            for held, queued in zip(cached, among.queued_tokens)
        ]
        tie = tie_tokens(query)
        equal = min(costs) + tie
        best = idlest(among, [place for place, cost in enumerate(costs) if cost <= equal])
        best_tokens = cached[best]
        if max(cached) - best_tokens > tie:
            reason = Reason.SPILL
        else:
            reason = Reason.PREFIX if best_tokens > tie else Reason.COLD
        return decide(self.name, query, among, costs, best, reason)
