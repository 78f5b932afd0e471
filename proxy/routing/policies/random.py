"""random: to any replica, each as likely as the others.

The draw comes with the query, so that the policy stays a function of its arguments.
"""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from proxy.routing.cost import decide
from proxy.routing.decision import Candidate, Decision, Query, Reason
from proxy.settings import RoutingSettings


class Random:
    """See the module's docstring."""

    name = "random"
    uses_prefix = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def rank(self, query: Query, candidates: Sequence[Candidate]) -> Decision:
        lots = {c.slot: xxh3_64_intdigest(b"%d" % c.slot, query.draw) for c in candidates}
        ordered = sorted(candidates, key=lambda candidate: lots[candidate.slot])
        return decide(self.name, query, list(enumerate(ordered)), Reason.CHANCE)
