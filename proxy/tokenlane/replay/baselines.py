"""Rules of other routers, to compare with: policies of the product's shape, not offered by it.

Each is the rule as it is published, fed with the product's own index and counts; what a router
knows less or later than that is not held against its rule.
"""

from typing import ClassVar

from tokenlane.routing.cost import decide
from tokenlane.routing.decision import Candidates, Decision, Query, Reason
from tokenlane.routing.policies import Policy

# The text-tree router's common defaults.
_MATCH_SHARE = 0.3
_IMBALANCE_REQUESTS = 64
_IMBALANCE_RATIO = 1.5


def _fewest(among: Candidates) -> int:
    """The place with the fewest requests in flight; of equals the one chosen longest ago."""
    chosen_at = among.history.chosen_at
    return min(
        range(len(among.slots)),
        key=lambda place: (among.requests[place], chosen_at(among.slots[place])),
    )


class LeastRequests:
    """The fewest requests in flight."""

    name: ClassVar[str] = "least-requests"
    uses_prefix: ClassVar[bool] = False

    def choose(self, query: Query, among: Candidates) -> Decision:
        """By count alone."""
        best = _fewest(among)
        return decide(self.name, query, among, among.requests, best, Reason.LEAST_LOAD)


class TextTree:
    """The longest match if it is more than 0.3 of the prompt, else the fewest requests; the
    fewest requests too while the counts are unbalanced by more than 64 and 1.5 times."""

    name: ClassVar[str] = "text-tree"
    uses_prefix: ClassVar[bool] = True

    def choose(self, query: Query, among: Candidates) -> Decision:
        """By match, unless it is short or the load uneven."""
        most, least = max(among.requests), min(among.requests)
        best_tokens = max(among.cached_tokens)
        uneven = most - least > _IMBALANCE_REQUESTS and most > _IMBALANCE_RATIO * least
        if uneven or best_tokens <= _MATCH_SHARE * query.prompt_tokens:
            best, reason = _fewest(among), Reason.LEAST_LOAD
        else:
            best, reason = among.cached_tokens.index(best_tokens), Reason.PREFIX
        return decide(self.name, query, among, among.requests, best, reason)


class QueueAndOwn:
    """The least work before the first token: min(queue + own)."""

    name: ClassVar[str] = "queue-own"
    uses_prefix: ClassVar[bool] = True

    def choose(self, query: Query, among: Candidates) -> Decision:
        """As affinity at a price of 1."""
        costs = [
            query.prompt_tokens - held + queued
            for held, queued in zip(among.cached_tokens, among.queued_tokens)
        ]
        return decide(self.name, query, among, costs, costs.index(min(costs)), Reason.PREFIX)


BASELINES: dict[str, Policy] = {
    policy.name: policy for policy in (LeastRequests(), TextTree(), QueueAndOwn())
}
