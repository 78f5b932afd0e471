"""session: requests of one session to one replica, by a header that names the session.

The header is one of `session_headers`. Stateless, as prefix-hash; a replica with more than its
bounded share of the requests passes a session on to the next in the session's order. Requests
that name no session are routed by affinity.
"""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.consistent_hashing import bounded, preference, ranks
from tokenlane.routing.cost import decide
from tokenlane.routing.decision import Candidates, Decision, Query, Reason
from tokenlane.routing.policies.affinity import Affinity


class Session:
    """See the module's docstring."""

    name: ClassVar[str] = "session"
    uses_prefix: ClassVar[bool] = True

    def __init__(self, settings: RoutingSettings) -> None:
        self._load_factor = settings.load_factor
        self._otherwise = Affinity(settings)

    def choose(self, query: Query, among: Candidates) -> Decision:
        if not query.session:
            other = self._otherwise.choose(query, among)
            return Decision(self.name, other.reason, query, among, other.costs, other.best)
        order = preference(query.session, among)
        best = bounded(order, among, self._load_factor)
        reason = Reason.SESSION if best == order[0] else Reason.SPILL
        return decide(self.name, query, among, ranks(order), best, reason)
