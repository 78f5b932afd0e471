"""Requests in flight by the parent that waits for them.

Invariants:
- Only leases count here; a parent whose last request ended is forgotten.
- A worker counts the requests it sent itself: several workers understate, none invents.
"""


class Siblings:
    """parent: a number for it, not 0."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, parent: int) -> int:
        """Requests in flight that this parent waits for."""
        return self._counts.get(parent, 0)

    def began(self, parent: int) -> None:
        """One more is on its way."""
        self._counts[parent] = self._counts.get(parent, 0) + 1

    def ended(self, parent: int) -> None:
        """One of them is over."""
        left = self._counts[parent] - 1
        if left:
            self._counts[parent] = left
        else:
            del self._counts[parent]

    def __len__(self) -> int:
        return len(self._counts)
