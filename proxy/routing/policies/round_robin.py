"""round-robin: to the replica that was chosen longest ago.

Taking turns by "longest ago" and not by a counter over a list: replicas may come and go between
two requests without anybody being skipped or served twice.
"""

from collections.abc import Sequence

from proxy.routing.cost import decide
from proxy.routing.decision import Candidate, Decision, Query, Reason
from proxy.settings import RoutingSettings


class RoundRobin:
    """See the module's docstring."""

    name = "round-robin"
    uses_prefix = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def rank(self, query: Query, candidates: Sequence[Candidate]) -> Decision:
        ordered = sorted(candidates, key=lambda candidate: candidate.chosen_at)
        return decide(self.name, query, list(enumerate(ordered)), Reason.TURN)
