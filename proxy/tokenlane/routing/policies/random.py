"""random: to any replica, each as likely as the others.

The draw comes with the query, so that the policy stays a function of its arguments.
"""

from typing import ClassVar

from xxhash import xxh3_64_intdigest

from tokenlane.config.settings import RoutingSettings
from tokenlane.routing.cost import decide
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class Random:
    """See the module's docstring."""

    name: ClassVar[str] = "random"
    uses_prefix: ClassVar[bool] = False

    def __init__(self, settings: RoutingSettings) -> None:
        """Nothing to set."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        lots = [xxh3_64_intdigest(b"%d" % slot, query.draw) for slot in among.slots]
        best = lots.index(min(lots))
        return decide(self.name, query, among, lots, best, Reason.CHANCE)
