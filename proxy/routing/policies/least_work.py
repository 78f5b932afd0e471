"""least-work: to the replica with the fewest uncached tokens in its queue, prefixes ignored."""

from typing import ClassVar

from proxy.routing.cost import decide, idlest
from proxy.routing.decision import Candidates, Decision, Query, Reason
from proxy.settings import RoutingSettings


class LeastWork:
    """See the module's docstring."""

    name: ClassVar[str] = "least-work"
    uses_prefix: ClassVar[bool] = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        best = idlest(among, range(len(among.slots)))
        return decide(self.name, query, among, among.queued_tokens, best, Reason.LEAST_LOAD)
