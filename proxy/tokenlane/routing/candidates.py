"""Which replicas may take a request now: up, not draining, with the model, not just refused.

Invariants:
- What the control plane says comes first: a replica it calls down or draining is never used.
- A passive mark (a refused or timed-out connect, seen by a request) only adds doubt. It ends by
  itself, or when a snapshot shows the replica risen again, and it never empties the list: if
  all that are left carry one, all are used (panic), since probes say they are up.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from tokenlane.fleet_state import FleetState, ReplicaState


class Nobody(StrEnum):
    """Why there is no candidate (metric label; decides the status of the answer)."""

    UNKNOWN_MODEL = "unknown-model"  # no replica, in whatever state, has it
    DRAINING = "draining"  # those that are up are leaving
    DOWN = "down"  # none is up
    FULL = "full"  # all have as many requests as they may


class Eligible(msgspec.Struct, frozen=True, gc=False):
    """The replicas to choose from, by slot; `nobody` says why when there are none."""

    slots: tuple[int, ...]
    panic: bool = False
    nobody: Nobody | None = None

    def without(self, tried: set[int]) -> "Eligible":
        """The same without replicas that had their chance."""
        return Eligible(tuple(slot for slot in self.slots if slot not in tried), self.panic)


_NONE: frozenset[int] = frozenset()


class Marks:
    """Replicas that failed to accept a connection a moment ago. `now`: seconds, monotonic. until:
    when each mark ends; marks that have ended may still be there."""

    def __init__(self, out_s: float) -> None:
        """out_s: how long one failure keeps a replica out unless a probe clears it."""
        self._out_s = out_s
        self.until: dict[int, float] = {}

    def configure(self, out_s: float) -> None:
        """For the marks to come."""
        self._out_s = out_s

    def fail(self, slot: int, now: float) -> None:
        """A connection was refused or timed out."""
        self.until[slot] = now + self._out_s

    def clear(self, slot: int) -> None:
        """A later probe, or an answer, proves it alive."""
        self.until.pop(slot, None)

    def out(self, now: float) -> frozenset[int]:
        """Slots to leave out now; marks that have ended are dropped."""
        if not self.until:
            return _NONE
        self.until = {slot: until for slot, until in self.until.items() if now < until}
        return frozenset(self.until)

    def __repr__(self) -> str:
        return f"<Marks {dict(sorted(self.until.items()))}>"


def serves(replica: ReplicaState, model: str | None) -> bool:
    """Whether it has the model; one whose models are not known yet may have any."""
    return model is None or not replica.models or model in replica.models


def eligible(fleet: FleetState, model: str | None) -> Eligible:
    """The replicas that may take a request for `model` (None: any model), in fleet order."""
    having = [replica for replica in fleet.replicas if serves(replica, model)]
    if fleet.replicas and not having:
        return Eligible((), nobody=Nobody.UNKNOWN_MODEL)
    up = [replica for replica in having if replica.up]
    if not up:
        return Eligible((), nobody=Nobody.DOWN)
    staying = tuple(replica.slot for replica in up if not replica.draining)
    return Eligible(staying, nobody=None if staying else Nobody.DRAINING)


def undoubted(all_of: Eligible, out: frozenset[int]) -> Eligible:
    """`all_of` without the slots in `out`; all of them again if nothing is left."""
    if not out or all_of.nobody is not None:
        return all_of
    staying = tuple(slot for slot in all_of.slots if slot not in out)
    return Eligible(staying) if staying else Eligible(all_of.slots, panic=True)


def roomy(all_of: Eligible, requests: Sequence[int], limit_count: int) -> Eligible:
    """`all_of` without those that have their fill. requests: in flight to each."""
    if all_of.nobody is not None or max(requests) < limit_count:
        return all_of
    slots = tuple(
        slot for slot, count in zip(all_of.slots, requests, strict=True) if count < limit_count
    )
    return Eligible(slots, all_of.panic, None if slots else Nobody.FULL)


def restarted(before: FleetState, after: FleetState) -> Iterable[int]:
    """Slots whose cache is empty in `after`: new, another process, or risen without proof that
    it is the same one. A start time that becomes known late proves nothing by itself.
    """
    known = {replica.slot: replica for replica in before.replicas}
    for replica in after.replicas:
        old = known.get(replica.slot)
        if old is None or old.id != replica.id or old.incarnation != replica.incarnation:
            yield replica.slot
        elif old.started_s and replica.started_s:
            if old.started_s != replica.started_s:
                yield replica.slot
        elif replica.up and not old.up:
            yield replica.slot
