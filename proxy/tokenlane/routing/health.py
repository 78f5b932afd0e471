"""Replicas that fail their requests: left out for a while, and back by degrees. Passive and pure.

Invariants:
- Only failures of the replica count; what a client did wrong, or that it left, never does.
- `failure_limit_count` failures in a row put a replica out; each time in a row for longer. One that
  comes back has one chance: its next failure puts it out again.
- One is put out only while it makes no more than `ejection_limit_ratio` of the replicas that share
  a model with it (but always one may be out): when most fail, it is not they who are ill. Whoever
  asks uses all where none is left (panic).
- A replica that was out, or restarted, gets its share by degrees over `slow_start_s`, where others
  can take the rest.
- What probes say comes first: one that they call up again has a clean record.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from tokenlane.config.settings import HealthSettings
from tokenlane.fleet_state import ReplicaState
from tokenlane.routing.candidates import alike

_NONE: Final[frozenset[int]] = frozenset()
# The share of its requests that a replica gets first.
_FIRST_SHARE: Final = 0.1


class Health:
    """One worker's view. random: draws from [0, 1). Times: monotonic seconds, never going back.
    troubled: some replica is not simply well, so it is worth asking. settings: apply from the next
    failure on; who is out stays out as long as was said."""

    def __init__(self, settings: HealthSettings, random: Callable[[], float]) -> None:
        self.settings = settings
        self._random = random
        self._fleet: Sequence[ReplicaState] = ()
        self._failures: dict[int, int] = {}
        self._ejections: dict[int, int] = {}
        self._until: dict[int, float] = {}
        # None: from the next time anybody asks.
        self._rising: dict[int, float | None] = {}
        self.troubled = False

    def fleet(self, replicas: Sequence[ReplicaState]) -> None:
        """These replicas there are."""
        self._fleet = replicas

    def failed(self, slot: int, now: float) -> bool:
        """A request failed at the replica; True if that puts it out."""
        failures = self._failures[slot] = self._failures.get(slot, 0) + 1
        self.troubled = True
        if failures < self.settings.failure_limit_count or slot in self.ejected(now):
            return False
        peers = alike(self._fleet, slot)
        limit = max(1, int(len(peers) * self.settings.ejection_limit_ratio))
        if len(self.ejected(now) & peers) >= limit:
            return False
        times = self._ejections[slot] = self._ejections.get(slot, 0) + 1
        out_s = min(self.settings.ejection_s * times, self.settings.ejection_limit_s)
        self._until[slot] = now + out_s
        self._rising.pop(slot, None)
        return True

    def served(self, slot: int) -> None:
        """A request was answered well by the replica."""
        self._failures.pop(slot, None)
        if slot not in self._until and slot not in self._rising:
            self._ejections.pop(slot, None)
        self._look()

    def rise(self, slot: int) -> None:
        """It begins anew, with an empty cache: a clean record, and a slow start."""
        self.forget(slot)
        if self.settings.slow_start_s > 0:
            self._rising[slot] = None
        self._look()

    def forget(self, slot: int) -> None:
        """The replica is gone, or another one."""
        self._failures.pop(slot, None)
        self._ejections.pop(slot, None)
        self._until.pop(slot, None)
        self._rising.pop(slot, None)
        self._look()

    def ejected(self, now: float) -> frozenset[int]:
        """Slots that are out. One whose time has passed comes back here, with one chance."""
        if not self._until:
            return _NONE
        for slot, until in list(self._until.items()):
            if now >= until:
                del self._until[slot]
                self._failures[slot] = self.settings.failure_limit_count - 1
                if self.settings.slow_start_s > 0:
                    self._rising[slot] = until
        return frozenset(self._until)

    def spared(self, now: float) -> set[int]:
        """Slots to spare in one decision: some of those that start slowly, by lot."""
        spared = set()
        for slot, began in list(self._rising.items()):
            since = now if began is None else began
            self._rising[slot] = since
            # A request may have read the clock before the one that began it.
            risen_s, whole_s = max(now - since, 0.0), self.settings.slow_start_s
            if risen_s >= whole_s:  # also where a reload has ended slow starts
                del self._rising[slot]
                self._look()
            elif self._random() >= max(risen_s / whole_s, _FIRST_SHARE):
                spared.add(slot)
        return spared

    @property
    def rising(self) -> Collection[int]:
        """Slots that start slowly."""
        return self._rising.keys()

    def _look(self) -> None:
        self.troubled = bool(self._failures or self._until or self._rising or self._ejections)

    def __repr__(self) -> str:
        return f"<Health failures={self._failures} until={self._until} rising={self._rising}>"
