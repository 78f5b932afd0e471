"""The whole-request cache: digest of everything that decides the ids -> Prompt.

Invariants:
- Bounded in entries and in bytes; an entry over its own limit is not taken in at all.
- Counts only grow; who exports them takes differences.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

import cachetools

from proxy.model import Prompt


class Counted(Protocol):
    """A cache as metrics see it."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def __len__(self) -> int: ...


class CacheCounts(NamedTuple):
    """What one kind of cache holds now, and what it did since the start."""

    entries: int = 0
    size_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @classmethod
    def of(cls, caches: Collection[Counted]) -> "CacheCounts":
        """Those of several caches together."""
        return cls(
            sum(map(len, caches)),
            sum(cache.size_bytes for cache in caches),
            sum(cache.hits for cache in caches),
            sum(cache.misses for cache in caches),
            sum(cache.evictions for cache in caches),
        )


class _Lru(cachetools.LRUCache[bytes, Prompt]):
    """Counts what it throws out."""

    evictions = 0

    def popitem(self) -> tuple[bytes, Prompt]:
        """As LRUCache.popitem, the only way an entry is evicted."""
        self.evictions += 1
        return super().popitem()


class PromptCache:
    """LRU over prompts. hits, misses, evictions: counts since the start."""

    def __init__(self, *, limit_entries: int, limit_bytes: int, entry_limit_bytes: int) -> None:
        self._lru = _Lru(limit_bytes, getsizeof=lambda prompt: prompt.size_bytes)
        self._limit_entries = limit_entries
        self._entry_limit_bytes = min(entry_limit_bytes, limit_bytes)
        self.hits = 0
        self.misses = 0

    def get(self, key: bytes) -> Prompt | None:
        """The prompt under a key, now the most recently used one."""
        try:
            prompt = self._lru[key]
        except KeyError:
            self.misses += 1
            return None
        self.hits += 1
        return prompt

    def put(self, key: bytes, prompt: Prompt) -> bool:
        """Takes a prompt in, evicting the least recently used; False if it is too large."""
        if prompt.size_bytes > self._entry_limit_bytes or self._limit_entries == 0:
            return False
        self._lru[key] = prompt
        if len(self._lru) > self._limit_entries:
            self._lru.popitem()
        return True

    def clear(self) -> None:
        """Forgets everything (the blocks of all entries changed their size)."""
        self._lru.clear()

    @property
    def evictions(self) -> int:
        """Entries thrown out for room."""
        return self._lru.evictions

    @property
    def size_bytes(self) -> int:
        """Bytes accounted for."""
        return int(self._lru.currsize)

    def __len__(self) -> int:
        return len(self._lru)
