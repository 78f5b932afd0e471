"""Policies: one small pure file each, found by name here.

To add one: write a class with `name`, `uses_prefix`, a constructor that takes RoutingSettings
and `choose`, which picks one of the candidates it is given (never none), and add it to the tuple
below.
"""

from collections.abc import Callable
from typing import Protocol

from proxy.errors import ConfigError
from proxy.routing.decision import Candidates, Decision, Query
from proxy.routing.policies.affinity import Affinity
from proxy.routing.policies.least_work import LeastWork
from proxy.routing.policies.random import Random
from proxy.routing.policies.round_robin import RoundRobin
from proxy.settings import RoutingSettings


class Policy(Protocol):
    """Turns what is known into a choice. uses_prefix: `cached_tokens` matters to it."""

    @property
    def name(self) -> str:
        """The word for settings, headers and metric labels."""

    @property
    def uses_prefix(self) -> bool:
        """False: the choice would be the same if all caches were empty."""

    def choose(self, query: Query, among: Candidates) -> Decision:
        """The best of `among`, with the costs of all and the reason."""


POLICIES: dict[str, Callable[[RoutingSettings], Policy]] = {
    policy.name: policy for policy in (Affinity, LeastWork, RoundRobin, Random)
}


def make_policy(settings: RoutingSettings) -> Policy:
    """The policy that the settings name. Raises ConfigError."""
    try:
        return POLICIES[settings.policy](settings)
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise ConfigError(
            f"routing.policy: {settings.policy!r} is unknown; choose one of {known}"
        ) from None
