"""The whole-request cache: digest of everything that decides the ids -> Prompt.

Invariants:
- Bounded in entries and in bytes; an entry over its own limit is not taken in at all.
- Counts only grow; who exports them takes differences.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple, Protocol

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


class PromptCache:
    """LRU over prompts. hits, misses, evictions: counts since the start."""

    def __init__(self, *, limit_entries: int, limit_bytes: int, entry_limit_bytes: int) -> None:
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._limit_entries = limit_entries
        self._limit_bytes = limit_bytes
        self._entry_limit_bytes = min(entry_limit_bytes, limit_bytes)
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def get(self, key: bytes) -> Prompt | None:
        """The prompt under a key, now the most recently used one."""
        prompt = self._prompts.get(key)
        if prompt is None:
            self.misses += 1
            return None
        self._prompts.move_to_end(key)
        self.hits += 1
        return prompt

    def put(self, key: bytes, prompt: Prompt) -> bool:
        """Takes a prompt in, evicting the least recently used; False if it is too large."""
        size_bytes = prompt.size_bytes
        if size_bytes > self._entry_limit_bytes or self._limit_entries == 0:
            return False
        prompts = self._prompts
        old = prompts.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes
        prompts[key] = prompt
        self.size_bytes += size_bytes
        while self.size_bytes > self._limit_bytes or len(prompts) > self._limit_entries:
            _, evicted = prompts.popitem(last=False)
            self.size_bytes -= evicted.size_bytes
            self.evictions += 1
        return True

    def clear(self) -> None:
        """Forgets everything (the blocks of all entries changed their size)."""
        self._prompts.clear()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._prompts)
