"""Where responses are kept: each vLLM server has its own, which is asked first for what it made.

Invariants:
- What is known is a guess: a replica that restarted has forgotten. It says 404, and the request
  goes on to the others one by one, as one whose home is not known does from the start.
- Of the last LIMIT_COUNT responses that this worker saw, with names of a limited length: memory is
  bounded. (vLLM's own names have 37 characters.)
"""

from cachetools import FIFOCache

from tokenlane.routing.candidates import Eligible

LIMIT_COUNT = 10_000
NAME_LIMIT_CHARS = 256


class ResponseHomes:
    """A worker's memory of which replica (its slot) keeps each response."""

    def __init__(self, limit_count: int = LIMIT_COUNT) -> None:
        self._slots: FIFOCache[str, int] = FIFOCache(limit_count)

    def learn(self, name: str, slot: int) -> None:
        """Remember that this replica keeps the response, or may."""
        if len(name) <= NAME_LIMIT_CHARS:
            self._slots[name] = slot

    def first(self, name: str, among: Eligible) -> Eligible:
        """Return the replica that keeps it, if it is known and not tried yet, else all of them."""
        slot = self._slots.get(name, -1)
        return Eligible((slot,), among.panic) if slot in among.slots else among

    def __len__(self) -> int:
        return len(self._slots)
