"""The base of the caches of beginnings: entries with marks, places that others may go on from.

Invariants:
- An entry that another one continues gives its place to it: what grows is kept once.
- Bounded in bytes; an entry over its own limit is not taken in at all.
- Safe between threads: entries never change, a lookup needs no lock, order and counts change
  under it.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec

from tokenlane.tokens.caches.lru import BoundedCache, Budget


class MarkedEntry(msgspec.Struct):
    """What such a cache holds."""

    @property
    def size_bytes(self) -> int:
        """The memory it takes."""
        raise NotImplementedError

    def names(self) -> list[Any]:
        """Return a name for each of its marks."""
        raise NotImplementedError


_Entry = TypeVar("_Entry", bound=MarkedEntry)


class MarkedCache(BoundedCache[int, _Entry], Generic[_Entry]):
    """LRU over entries by their identity, which are found by the names of their marks."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._named: dict[Hashable, _Entry] = {}

    def put(self, new: _Entry, old: _Entry | None = None) -> None:
        """Take an entry in. old: it goes on where this one ended, and so takes its place."""
        names, size_bytes = new.names(), new.size_bytes
        if not names or not self.takes(size_bytes):
            return
        with self._lock:
            if old is not None and id(old) in self._items:
                self._drop(old)
                size_bytes -= old.size_bytes
            self._items[id(new)] = new
            self._named.update(dict.fromkeys(names, new))
            self.budget.grow(self, size_bytes)

    def use(self, entry: _Entry) -> None:
        """Mark an entry as the most recently used."""
        with self._lock:
            if id(entry) in self._items:
                self._items.move_to_end(id(entry))

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._named.clear()
            self._items.clear()
            self.budget.grow(self, -self.size_bytes)

    def forget_oldest(self) -> int:
        """Drop the least recently used entry."""
        oldest = next(iter(self._items.values()))
        self._drop(oldest)
        return oldest.size_bytes

    def _drop(self, entry: _Entry) -> None:
        del self._items[id(entry)]
        for name in entry.names():
            if self._named.get(name) is entry:
                del self._named[name]
