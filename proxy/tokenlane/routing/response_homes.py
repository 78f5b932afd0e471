"""Where responses are kept, and whose they are: each vLLM server has its own, which is asked first
for what it made.

Invariants:
- Where it is kept is a guess: a replica that restarted has forgotten. It says 404, and the request
  goes on to the others one by one, as one whose home is not known does from the start.
- Whose it is never changes: who makes a response under the name of another's gets no part of it.
- Of the last LIMIT_COUNT responses, with names of a limited length (vLLM's own have 37 characters):
  memory is bounded. Who has most of them loses the oldest first, so nobody makes others' be
  forgotten by making many.
"""

from collections import OrderedDict
from collections.abc import Iterator
from sys import getsizeof

from tokenlane.routing.candidates import Eligible

LIMIT_COUNT = 10_000
NAME_LIMIT_CHARS = 256
# What one costs beside its name; and a longest name, of four bytes a character.
_ENTRY_BYTES = 100
_LONGEST_BYTES = 76 + 4 * NAME_LIMIT_CHARS


class ResponseHomes:
    """The memory of which replica (its slot) keeps each response of each tenant. tenant: empty
    where there are none."""

    def __init__(self, limit_count: int = LIMIT_COUNT) -> None:
        self._limit_count = limit_count
        self._count = 0
        self.size_bytes = 0
        self.limit_bytes = limit_count * (_ENTRY_BYTES + _LONGEST_BYTES)
        self._slots: dict[str, OrderedDict[str, int]] = {}

    def learn(self, name: str, slot: int, tenant: str = "") -> None:
        """Remember that this replica keeps the response, or may."""
        owned = any(name in slots for whose, slots in self._slots.items() if whose != tenant)
        if owned or len(name) > NAME_LIMIT_CHARS:
            return
        slots = self._slots.setdefault(tenant, OrderedDict())
        if name not in slots:
            self._count += 1
            self.size_bytes += getsizeof(name) + _ENTRY_BYTES
        slots[name] = slot
        slots.move_to_end(name)
        if self._count > self._limit_count:
            oldest, _ = max(self._slots.values(), key=len).popitem(last=False)
            self._count -= 1
            self.size_bytes -= getsizeof(oldest) + _ENTRY_BYTES

    def owns(self, name: str, tenant: str) -> bool:
        """Whether the response is known to be this tenant's."""
        return name in self._slots.get(tenant, ())

    def first(self, name: str, among: Eligible, tenant: str = "") -> Eligible:
        """Return the replica that keeps it, if it is known and not tried yet, else all of them."""
        slots = self._slots.get(tenant)
        slot = slots.get(name, -1) if slots is not None else -1
        known = slot in among.slots or slot in among.spared
        return among.only((slot,)) if known else among

    def find(self, name: str) -> tuple[int, str]:
        """Where the response is, and whose; (-1, "") where that is not known."""
        for tenant, slots in self._slots.items():
            if name in slots:
                return slots[name], tenant
        return -1, ""

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        """Yield each response's name, slot and tenant; of a tenant, the oldest first."""
        for tenant, slots in self._slots.items():
            for name, slot in slots.items():
                yield name, slot, tenant

    def __len__(self) -> int:
        return self._count
