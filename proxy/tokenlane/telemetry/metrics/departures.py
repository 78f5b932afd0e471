"""Which replicas and models have been gone for so long that their labels are dropped. Pure.

Invariants:
- Only what was present once can depart: labels that stand for nothing (`other`) stay.
- The supervisor stops showing a label before the first worker gives it up: what is summed over the
  workers does not fall piece by piece, which `rate` would take for a restart.
- Memory is bounded by the labels present in the last SHOWN_S.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from tokenlane.fleet_state import ReplicaState

# Long enough that the last of a replica's counts are scraped, and one that is only replaced for an
# upgrade goes on where it was.
SHOWN_S = 600.0
KEPT_S = SHOWN_S + 60.0

# What stands for all values that are not known.
OTHER: Final = "other"

# A label's name and one of its values.
Label = tuple[str, str]
Labels = AbstractSet[Label]


def labels_of(replicas: Iterable[ReplicaState], models: Iterable[str]) -> set[Label]:
    """Return the labels that stand for these replicas, their models and others. A model that is
    called `other` has none of its own."""
    found = {("model", name) for name in models}
    for replica in replicas:
        found.add(("replica", replica.id))
        found.update(("model", name) for name in replica.models)
    found.discard(("model", OTHER))
    return found


class Departures:
    """Labels in use, and when each was last in use. after_s: the time until a label departs."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._seen_s: dict[Label, float] = {}

    def tick(self, present: Labels, now_s: float) -> set[Label]:
        """Return the labels that depart now. present: the labels in use now."""
        self._seen_s.update(dict.fromkeys(present, now_s))
        gone = {label for label, seen_s in self._seen_s.items() if now_s - seen_s >= self._after_s}
        for label in gone:
            del self._seen_s[label]
        return gone
