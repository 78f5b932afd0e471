"""What all token caches have in common, and the whole-request cache: digest of everything that
decides the ids -> Prompt.

Invariants:
- Bounded in bytes, together with the caches it shares a budget with; an entry over its own limit
  is not taken in at all.
- An entry counts with all the memory it takes, headers and links included.
- Counts only grow; the exporter takes differences.
"""

from collections import OrderedDict
from collections.abc import Collection
from sys import getsizeof
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tokenlane.prompt import Prompt


class Budget:
    """The memory that the caches of one kind, one for each model, hold together. The largest gives
    way, so a busy model takes what others leave, and nothing of what they keep below that.

    entry_limit_bytes: of one entry. lock: held by whoever changes one of them.
    """

    def __init__(self, limit_bytes: int, entry_limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.entry_limit_bytes = min(entry_limit_bytes, limit_bytes)
        self.size_bytes = 0
        self.lock = Lock()
        self.caches: list[BoundedCache[Any, Any]] = []

    def grow(self, cache: "BoundedCache[Any, Any]", size_bytes: int) -> None:
        """Note that a cache grew or shrank; evict entries until all caches are within the limit."""
        cache.size_bytes += size_bytes
        self.size_bytes += size_bytes
        while self.size_bytes > self.limit_bytes:
            largest = max(self.caches, key=_size_bytes) if len(self.caches) > 1 else cache
            freed_bytes = largest.forget_oldest()
            largest.evictions += 1
            largest.size_bytes -= freed_bytes
            self.size_bytes -= freed_bytes


# Memory of a piece besides both sizes: the value's header, hash and links of the dictionary.
_PIECE_BYTES: Final = 120
_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")


class BoundedCache(Generic[_Key, _Entry]):
    """The base of all token caches: entries, the least recently used first, a part in a budget, and
    counts since the start."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        budget.caches.append(self)
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._items: OrderedDict[_Key, _Entry] = OrderedDict()
        self._lock = budget.lock

    def takes(self, size_bytes: int) -> bool:
        """Return whether an entry of this size is let in at all."""
        return size_bytes <= self.budget.entry_limit_bytes

    def size_of(self, key: _Key, entry: _Entry) -> int:
        """Return the memory that an entry takes."""
        raise NotImplementedError

    def forget_oldest(self) -> int:
        """Drop the least recently used entry and return its bytes."""
        return self.size_of(*self._items.popitem(last=False))

    def clear(self) -> None:
        """Forget everything (the blocks of all entries changed their size)."""
        with self._lock:
            self._items.clear()
            self.budget.grow(self, -self.size_bytes)

    def __len__(self) -> int:
        return len(self._items)


def _size_bytes(cache: BoundedCache[Any, Any]) -> int:
    return cache.size_bytes


class CacheCounts(NamedTuple):
    """What one kind of cache holds now, and its counts since the start."""

    entries: int = 0
    size_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @classmethod
    def of(cls, caches: Collection[BoundedCache[Any, Any]]) -> "CacheCounts":
        """Return the counts of several caches together."""
        return cls(
            sum(map(len, caches)),
            sum(cache.size_bytes for cache in caches),
            sum(cache.hits for cache in caches),
            sum(cache.misses for cache in caches),
            sum(cache.evictions for cache in caches),
        )


class PromptCache(BoundedCache[bytes, Prompt]):
    """LRU over prompts."""

    def get(self, key: bytes) -> Prompt | None:
        """Return the prompt under a key, now the most recently used one."""
        prompt = self._items.get(key)
        if prompt is None:
            self.misses += 1
            return None
        self._items.move_to_end(key)
        self.hits += 1
        return prompt

    def put(self, key: bytes, prompt: Prompt) -> bool:
        """Take a prompt in, evicting the least recently used; False if it is too large."""
        size_bytes = self.size_of(key, prompt)
        if not self.takes(size_bytes):
            return False
        old = self._items.pop(key, None)
        if old is not None:
            size_bytes -= self.size_of(key, old)
        self._items[key] = prompt
        self.budget.grow(self, size_bytes)
        return True

    def size_of(self, key: bytes, entry: Prompt) -> int:
        """Return the memory of a prompt, its key included."""
        return 4 * entry.tokens + len(entry.blocks) + 42 * len(entry.sequences) + 200


class PieceCache(BoundedCache[_Key, bytes]):
    """LRU over pieces of something long: what each was made into.

    Keyed by the piece itself, so a hit is exact whatever clients send. Safe between threads:
    entries are found without the lock; order and counts change under it.
    """

    def get(self, pieces: list[_Key]) -> list[bytes | None]:
        """Return what each piece was made into, None where that is not known; the known ones are
        now the most recently used."""
        items = self._items
        found = [items.get(piece) for piece in pieces]
        with self._lock:
            hits = 0
            for piece, made in zip(pieces, found, strict=True):
                if made is not None:
                    hits += 1
                    if piece in items:
                        items.move_to_end(piece)
            self.hits += hits
            self.misses += len(pieces) - hits
        return found

    def put(self, pieces: list[_Key], made: list[bytes]) -> None:
        """Take pieces in, evicting the least recently used."""
        items = self._items
        with self._lock:
            for piece, own in zip(pieces, made, strict=True):
                size = self.size_of(piece, own)
                if not self.takes(size) or piece in items:
                    continue
                items[piece] = own
                self.budget.grow(self, size)

    def size_of(self, key: _Key, entry: bytes) -> int:
        """Return the memory of a piece."""
        return getsizeof(key) + len(entry) + _PIECE_BYTES
