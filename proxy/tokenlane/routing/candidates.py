"""Which replicas may take a request now: up, not draining, with the model, not just refused.

Invariants:
- What the control plane says comes first: a replica it calls down or draining is never used.
- A replica is a candidate or is left out for one reason, which is what everybody is told.
- A passive mark (a refused or timed-out connect, seen by a request) only adds doubt. It ends by
  itself, or when a snapshot shows the replica risen again, and it never empties the list: if
  all that are left carry one, all are used (panic), since probes say they are up.
- A replica that starts slowly is not doubted. It is spared last, while there are others that are
  not doubted, not full and not tried.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from tokenlane.fleet_state import FleetState, ReplicaState, adapter_bases


class Nobody(StrEnum):
    """Why there is no candidate (metric label; decides the status of the answer)."""

    UNKNOWN_MODEL = "unknown-model"  # no replica, in whatever state, has it
    DRAINING = "draining"  # those that are up are leaving
    DOWN = "down"  # none is up
    FULL = "full"  # all have as many requests as they may


class LeftOut(StrEnum):
    """Why a replica is left out of a request."""

    OTHER_MODEL = "other-model"
    NO_ADAPTER = "no-adapter"
    DOWN = "down"
    DRAINING = "draining"
    REFUSED = "refused"
    EJECTED = "ejected"
    STARTING = "starting"
    FULL = "full"


LEFT_OUT_WORDS: Final[Mapping[LeftOut, str]] = {
    LeftOut.OTHER_MODEL: "does not serve the model",
    LeftOut.NO_ADAPTER: "serves the model, but has not loaded the adapter",
    LeftOut.DOWN: "down",
    LeftOut.DRAINING: "draining",
    LeftOut.REFUSED: "refused a connection or a request a moment ago",
    LeftOut.EJECTED: "left out for its failures",
    LeftOut.STARTING: "starting slowly, with a part of the requests",
    LeftOut.FULL: "full, with as many requests as it may have",
}
# What a worker finds out, whatever the request, of replicas that are up.
SEEN_BY_WORKERS: Final = (LeftOut.REFUSED, LeftOut.EJECTED, LeftOut.STARTING, LeftOut.FULL)
# Of replicas that are not meant at all.
OF_OTHERS: Final = (LeftOut.OTHER_MODEL, LeftOut.NO_ADAPTER)
_NONE: Final[Mapping[int, LeftOut]] = MappingProxyType({})


class Eligible(msgspec.Struct, frozen=True, gc=False):
    """The replicas to choose from, by slot; `nobody` says why when there are none. left_out: the
    others, each with its reason. spared: of these, who is chosen from when `slots` were tried."""

    slots: tuple[int, ...]
    panic: bool = False
    nobody: Nobody | None = None
    left_out: Mapping[int, LeftOut] = _NONE
    spared: tuple[int, ...] = ()

    def only(self, slots: tuple[int, ...]) -> "Eligible":
        """Return the same with these slots alone."""
        return Eligible(slots, self.panic, self.nobody, self.left_out)

    def without(self, tried: set[int]) -> "Eligible":
        """Return the same without replicas that had their chance."""
        slots = tuple(slot for slot in self.slots if slot not in tried)
        spared = tuple(slot for slot in self.spared if slot not in tried)
        rest = spared if slots else ()
        return Eligible(slots or spared, self.panic, self.nobody, self.left_out, rest)


class Marks:
    """Replicas that failed to accept a connection a moment ago. `now`: seconds, monotonic. until:
    when each mark ends; marks that have ended may still be there. out_s: how long one failure keeps
    a replica out unless a probe clears it, from the next mark on."""

    def __init__(self, out_s: float) -> None:
        self.out_s = out_s
        self.until: dict[int, float] = {}

    def fail(self, slot: int, now: float) -> None:
        """A connection was refused or timed out."""
        self.until[slot] = now + self.out_s

    def clear(self, slot: int) -> None:
        """A later probe, or an answer, proves it alive."""
        self.until.pop(slot, None)

    def out(self, now: float) -> Mapping[int, LeftOut]:
        """Slots to leave out now; marks that have ended are dropped."""
        if not self.until:
            return _NONE
        self.until = {slot: until for slot, until in self.until.items() if now < until}
        return dict.fromkeys(self.until, LeftOut.REFUSED)

    def __repr__(self) -> str:
        return f"<Marks {dict(sorted(self.until.items()))}>"


def serves(replica: ReplicaState, model: str | None) -> bool:
    """Whether it has the model; one whose models are not known yet may have any."""
    return model is None or not replica.models or model in replica.models


def alike(replicas: Sequence[ReplicaState], slot: int) -> frozenset[int]:
    """The replicas that may serve a model which this one may serve too, by slot; it is one."""
    models = {model for one in replicas if one.slot == slot for model in one.models}
    return frozenset(
        [
            one.slot
            for one in replicas
            if not models or not one.models or not models.isdisjoint(one.models)
        ]
    )


def eligible(fleet: FleetState, model: str | None) -> Eligible:
    """The replicas that may take a request for `model` (None: any model), in fleet order."""
    base = adapter_bases(fleet.replicas).get(model) if model is not None else None
    left = {
        replica.slot: why
        for replica in fleet.replicas
        if (why := _why_left(replica, model, base)) is not None
    }
    staying = tuple(replica.slot for replica in fleet.replicas if replica.slot not in left)
    return Eligible(staying, nobody=None if staying else _nobody(left.values()), left_out=left)


def _why_left(replica: ReplicaState, model: str | None, base: str | None) -> LeftOut | None:
    if not serves(replica, model):
        has_base = base is not None and serves(replica, base)
        return LeftOut.NO_ADAPTER if has_base else LeftOut.OTHER_MODEL
    if not replica.up:
        return LeftOut.DOWN
    return LeftOut.DRAINING if replica.draining else None


def _nobody(left: Collection[LeftOut]) -> Nobody:
    having = [why for why in left if why not in OF_OTHERS]
    if left and not having:
        return Nobody.UNKNOWN_MODEL
    return Nobody.DRAINING if LeftOut.DRAINING in having else Nobody.DOWN


def undoubted(all_of: Eligible, out: Mapping[int, LeftOut]) -> Eligible:
    """`all_of` without the slots in `out`; all of them again if nothing is left."""
    if not out or all_of.nobody is not None:
        return all_of
    staying = tuple(slot for slot in all_of.slots if slot not in out)
    if not staying:
        return Eligible(all_of.slots, True, None, all_of.left_out)
    doubted = {slot: out[slot] for slot in all_of.slots if slot in out}
    return Eligible(staying, left_out={**all_of.left_out, **doubted})


def roomy(all_of: Eligible, requests: Sequence[int], limit_count: int) -> Eligible:
    """`all_of` without those that have their fill. requests: in flight to each."""
    if all_of.nobody is not None or max(requests) < limit_count:
        return all_of
    full = {
        slot: LeftOut.FULL
        for slot, count in zip(all_of.slots, requests, strict=True)
        if count >= limit_count
    }
    slots = tuple(slot for slot in all_of.slots if slot not in full)
    nobody = None if slots else Nobody.FULL
    return Eligible(slots, all_of.panic, nobody, {**all_of.left_out, **full})


def sparing(all_of: Eligible, starting: Collection[int]) -> Eligible:
    """`all_of` with the slots in `starting` only for when the others were tried; the same where
    there are no others, or all are doubted."""
    spared = tuple(slot for slot in all_of.slots if slot in starting)
    if not spared or all_of.panic or len(spared) == len(all_of.slots):
        return all_of
    slots = tuple(slot for slot in all_of.slots if slot not in starting)
    left_out = {**all_of.left_out, **dict.fromkeys(spared, LeftOut.STARTING)}
    return Eligible(slots, left_out=left_out, spared=spared)


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
