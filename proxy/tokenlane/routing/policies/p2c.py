"""p2c: two replicas are drawn, and the one with less to compute is taken.

Nearly as even as asking all, without several gateways that see the same counts all choosing the
same replica.
"""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.consistent_hashing import preference
from tokenlane.routing.cost import decide, idlest
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class P2C:
    """See the module's docstring."""

    name: ClassVar[str] = "p2c"
    uses_prefix: ClassVar[bool] = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        best = idlest(among, preference(query.draw, among)[:2])
        return decide(self.name, query, among, among.queued_tokens, best, Reason.CHANCE)
