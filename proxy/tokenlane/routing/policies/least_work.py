"""least-work: to the replica with the fewest uncached tokens in its queue, prefixes ignored."""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.cost import decide, idlest
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class LeastWork:
    """See the module's docstring."""

    name: ClassVar[str] = "least-work"
    uses_prefix: ClassVar[bool] = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        best = idlest(among, range(len(among.slots)))
        return decide(self.name, query, among, among.queued_tokens, best, Reason.LEAST_LOAD)
