"""The fleet as it changes at run time: sources and people say who belongs to it.

Invariants:
- Running requests are never touched: who drains gets nothing new, and who was removed is forgotten
  by the workers while its streams end by themselves.
- A slot is given out again only when nothing of its last replica is in flight in any worker, and
  the hints about it that were still under way have been heard.
- A source that does not know (None) changes nothing.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from tokenlane.control.fleet_table import FleetTable, base_url
from tokenlane.control.reconcile import Member, reconcile, wanted
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import Load

# Learned prefixes, KV events and probes of the last replica are heard by then.
QUARANTINE_S = 10.0

STATIC = "static"
API = "api"

log = logging.getLogger("fleet")


@dataclass(eq=False)
class Roster:
    """Adds to and takes from a table. sources: the order in which they are asked; static and api
    come first. load: what all workers have in flight in a slot.

    on_change: told once after each change: slots that are new, slots that are gone.
    """

    table: FleetTable
    slot_limit: int
    load: Callable[[int], Load]
    on_change: Callable[[list[int], list[int]], object]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        urls = [replica.url for replica in self.table.replicas]
        self._sources: dict[str, tuple[str, ...]] = {STATIC: tuple(urls), API: ()}
        self._members = {
            one.slot: Member(one.slot, one.id, one.url, STATIC) for one in self.table.replicas
        }
        self._dismissed: frozenset[str] = frozenset()
        self._retired_s: dict[int, float] = {}
        self._full = False
        # One that is wanted has the host and port of another that has not left yet.
        self._waits = False

    @property
    def members(self) -> tuple[Member, ...]:
        """Every replica of the fleet, by slot."""
        return tuple(self._members[slot] for slot in sorted(self._members))

    def member(self, id_: str) -> Member | None:
        """By its id."""
        return next((one for one in self._members.values() if one.id == id_), None)

    def want(self, source: str, backends: Iterable[str] | None) -> None:
        """What a source names now; None: it does not know. ConfigError where one is no URL, and
        then nothing changes."""
        if backends is not None:
            self._sources[source] = tuple(dict.fromkeys(map(base_url, backends)))
            self._settle()

    def drop(self, source: str) -> None:
        """The source is no more."""
        if self._sources.pop(source, None):
            self._settle()

    def add(self, backend: str) -> tuple[Member, bool]:
        """A person adds a replica, or wants one back that drains; whether it is new. ConfigError
        where the URL is none, or there is no place."""
        url = base_url(backend)
        there = self.member(url.partition("://")[2])
        if there is None and self._place() is None:
            raise ConfigError(f"the fleet is full: no more than {self.slot_limit} replicas")
        if there is not None and there.url != url:
            raise ConfigError(f"{there.id} is in the fleet already, as {there.url}")
        self._dismissed -= {url}
        if url not in wanted(self._sources):
            self._sources[API] += (url,)
        if there is not None:
            self._members[there.slot] = msgspec.structs.replace(there, held=False, leaving=False)
            self.table.drain(there.slot, False)
            self._settle(always=True)
        else:  # before those that a source names and that wait for a place
            slot = self._enter(url, wanted(self._sources)[url])
            self._settle(entered=slot)
        return next(one for one in self._members.values() if one.url == url), there is None

    def drain(self, id_: str) -> Member | None:
        """A person wants it to get nothing new; None if there is none of that id."""
        member = self.member(id_)
        if member is None:
            return None
        member = self._members[member.slot] = msgspec.structs.replace(member, held=True)
        self.table.drain(member.slot, True)
        log.info("replica %s drains, as requested", id_)
        self.on_change([], [])
        return member

    def remove(self, id_: str) -> Member | None:
        """A person takes it out of the fleet at once; None if there is none of that id."""
        member = self.member(id_)
        if member is None:
            return None
        self._sources[API] = tuple(url for url in self._sources[API] if url != member.url)
        if member.url in wanted(self._sources):
            self._dismissed |= {member.url}
        log.info("replica %s is removed, as requested", id_)
        self._forget(member)
        self.on_change([], [member.slot])
        if self._waits:
            self._settle()
        return member

    def sweep(self) -> None:
        """Lets go of those that leave and have nothing in flight; called about once a second."""
        gone = [
            one
            for one in self._members.values()
            if one.leaving and not self.load(one.slot).requests
        ]
        for member in gone:
            log.info("replica %s has left", member.id)
            self._forget(member)
        if gone:
            self.on_change([], [member.slot for member in gone])
        if self._full or (gone and self._waits):
            self._settle()

    def _settle(self, *, entered: int | None = None, always: bool = False) -> None:
        """Brings the fleet to what the sources want. entered: a slot that is new already. always:
        tell, though nothing may be new."""
        plan = reconcile(wanted(self._sources), self._members.values(), self._dismissed)
        self._dismissed = plan.dismissed
        self._waits = False
        for slots, leaving in ((plan.stay, False), (plan.leave, True)):
            for slot in slots:
                member = self._members[slot]
                # Drained by a person and named by nobody: when it is named again, it is new.
                held = member.held and not leaving
                member = msgspec.structs.replace(member, leaving=leaving, held=held)
                self._members[slot] = member
                self.table.drain(slot, member.draining)
                log.info("replica %s %s", member.id, "leaves" if leaving else "stays after all")
        new = [entered, *(self._enter(url, source) for url, source in plan.add)]
        added = [slot for slot in new if slot is not None]
        if always or added or plan.stay or plan.leave:
            self.on_change(added, [])

    def _enter(self, url: str, source: str) -> int | None:
        slot = self._place()
        if slot is None:
            if not self._full:
                log.warning("the fleet is full: %s has no place until another leaves", url)
            self._full = True
            return None
        try:
            state = self.table.add(slot, url)
        except ConfigError as error:  # another scheme with the same host and port
            log.warning("%s of %s is left out: %s", url, source, error)
            self._waits = True
            return None
        self._full = False
        self._members[slot] = Member(slot, state.id, url, source)
        self._retired_s.pop(slot, None)
        log.info("replica %s is new (%s)", state.id, source)
        return slot

    def _place(self) -> int | None:
        """A slot that nothing is left in: low numbers first, which the board reads fastest."""
        now_s = self.clock()
        for slot in range(self.slot_limit):
            if slot in self._members:
                continue
            left_s = self._retired_s.get(slot)
            if left_s is None or (now_s - left_s >= QUARANTINE_S and not self.load(slot).requests):
                return slot
        return None

    def _forget(self, member: Member) -> None:
        del self._members[member.slot]
        self._retired_s[member.slot] = self.clock()
        self.table.remove(member.slot)
