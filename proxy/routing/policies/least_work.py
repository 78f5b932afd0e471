"""least-work: to the replica with the fewest uncached tokens in its queue, prefixes ignored."""

from collections.abc import Sequence

from proxy.routing.cost import decide, idleness
from proxy.routing.decision import Candidate, Decision, Query, Reason
from proxy.settings import RoutingSettings


class LeastWork:
    """See the module's docstring."""

    name = "least-work"
    uses_prefix = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def rank(self, query: Query, candidates: Sequence[Candidate]) -> Decision:
        ordered = [(one.load.queued_tokens, one) for one in sorted(candidates, key=idleness)]
        return decide(self.name, query, ordered, Reason.LEAST_LOAD)
