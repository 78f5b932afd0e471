"""Policies: one small pure file each, found by name here.

To add one: write a class with `name`, `uses_prefix`, a constructor that takes RoutingSettings
and `choose`, which picks one of the candidates it is given (never none), and add it to the tuple
below.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Protocol

from tokenlane.config.settings import RoutingSettings
from tokenlane.errors import ConfigError
from tokenlane.routing.decision import Candidates, Decision, Query
from tokenlane.routing.policies.affinity import Affinity
from tokenlane.routing.policies.least_work import LeastWork
from tokenlane.routing.policies.p2c import P2C
from tokenlane.routing.policies.prefix_hash import PrefixHash
from tokenlane.routing.policies.random import Random
from tokenlane.routing.policies.round_robin import RoundRobin
from tokenlane.routing.policies.session import Session


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
    policy.name: policy
    for policy in (Affinity, PrefixHash, Session, LeastWork, P2C, RoundRobin, Random)
}


def check_policy(name: str, where: str, also: Iterable[str] = ()) -> None:
    """Raises ConfigError, with the nearest known name, if there is no such policy.

    where: what named it, for the message. also: other names that would have been right.
    """
    known = sorted({*POLICIES, *also})
    if name in known:
        return
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"{where}: {name!r} is unknown; {hint}choose one of {', '.join(known)}")


def make_policy(settings: RoutingSettings) -> Policy:
    """The policy that the settings name. Raises ConfigError."""
    check_policy(settings.policy, "routing.policy")
    return POLICIES[settings.policy](settings)
