"""affinity: to the replica that has the least to compute before this prompt's first token.

cost = own uncached tokens + price * queued uncached tokens. Below 1, the price says that a warm
cache is worth some waiting: following the prefix also saves the work that everybody else waits
for. How much that is worth depends on how many do wait, so the price is not fixed: `alpha` while
all replicas are busy, more as more of them idle, up to `idle_alpha`; up to `sibling_alpha` where
the same parent waits for others that are in flight, as it is done when the last of them is.
docs/routing.md has the replays that say so; at 1 (`min(queue + own)`) a fifth of the hits is lost.

Where replicas differ in speed, the price is paid for time and the rest for work:
(1 - price) * own + price * slowness * (own + queued), which is the same where slowness is 1.

Costs within `tie_tokens` of the lowest are equal; among them the usual tie rule decides. Where
nobody holds more than a system prompt's worth, what is held does not count either: the idlest
replica gets the conversation and a copy of that beginning, so that after a few of them all have
it and none is bound to where it was first seen.
"""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.cost import cold_limit_tokens, decide, idlest, least, most, tie_tokens
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class Affinity:
    """See the module's docstring."""

    name: ClassVar[str] = "affinity"
    uses_prefix: ClassVar[bool] = True

    def __init__(self, settings: RoutingSettings) -> None:
        self._alpha = settings.alpha
        self._idle_alpha = settings.idle_alpha
        self._sibling_alpha = settings.sibling_alpha

    def price(self, among: Candidates) -> float:
        """What a queued token counts beside an own one."""
        queued = among.queued_tokens
        highest = self._sibling_alpha if among.siblings else self._idle_alpha
        return max(self._alpha, highest * queued.count(0) / len(queued))

    def choose(self, query: Query, among: Candidates) -> Decision:
        price, prompt_tokens, cached = self.price(among), query.prompt_tokens, among.cached_tokens
        if among.slowness:
            costs = [
                (1.0 - price) * (prompt_tokens - held)
                + price * slow * (prompt_tokens - held + queued)
                for held, queued, slow in zip(cached, among.queued_tokens, among.slowness)
            ]
        else:
            costs = [
                prompt_tokens - held + price * queued
                for held, queued in zip(cached, among.queued_tokens)
            ]
        tie = tie_tokens(query)
        longest = most(cached)
        if longest <= cold_limit_tokens(query):
            tie = max(tie, longest)
        equal = least(costs) + tie
        best = idlest(among, [place for place, cost in enumerate(costs) if cost <= equal])
        best_tokens = cached[best]
        if longest - best_tokens > tie:
            reason = Reason.SPILL
        else:
            reason = Reason.PREFIX if best_tokens > tie else Reason.COLD
        return decide(self.name, query, among, costs, best, reason)
