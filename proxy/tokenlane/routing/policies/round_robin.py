"""round-robin: to the replica that was chosen longest ago.

Taking turns by "longest ago" and not by a counter over a list: replicas may come and go between
two requests without anybody being skipped or served twice.
"""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.cost import decide
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class RoundRobin:
    """See the module's docstring."""

    name: ClassVar[str] = "round-robin"
    uses_prefix: ClassVar[bool] = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        chosen_at = list(map(among.history.chosen_at, among.slots))
        best = chosen_at.index(min(chosen_at))
        return decide(self.name, query, among, chosen_at, best, Reason.TURN)
