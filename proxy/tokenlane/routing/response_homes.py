"""Where responses are kept: each vLLM server has its own, which is asked first for what it made.

Invariants:
- What is known is a guess: a replica that restarted has forgotten. It says 404, and the request
  goes on to the others one by one, as one whose home is not known does from the start.
- Of the last LIMIT_COUNT responses that this worker saw; memory is bounded.
"""

from collections import OrderedDict

from tokenlane.routing.candidates import Eligible

LIMIT_COUNT = 10_000


class ResponseHomes:
    """Of one worker: the slot of each response's replica."""

    def __init__(self, limit_count: int = LIMIT_COUNT) -> None:
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._limit_count = limit_count

    def learn(self, name: str, slot: int) -> None:
        """That replica keeps the response, or may."""
        self._slots[name] = slot
        self._slots.move_to_end(name)
        if len(self._slots) > self._limit_count:
            self._slots.popitem(last=False)

    def first(self, name: str, among: Eligible) -> Eligible:
        """The one that keeps it, where it is known and not tried yet; else all of them."""
        slot = self._slots.get(name, -1)
        return Eligible((slot,), among.panic) if slot in among.slots else among

    def __len__(self) -> int:
        return len(self._slots)
