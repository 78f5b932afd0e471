"""The whole-request cache: digest of everything that decides the ids -> Prompt.

Invariants:
- Bounded in entries and in bytes; an entry over its own limit is not taken in at all.
- Counts only grow; who exports them takes differences.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from tokenlane.prompt import Prompt


class Budget(NamedTuple):
    """What a cache may hold; entry_limit_bytes: of one entry."""

    limit_entries: int
    limit_bytes: int
    entry_limit_bytes: int


class BoundedCache:
    """What all caches of tokens share: a budget, and counts since the start."""

    def __init__(self, budget: Budget) -> None:
        self.limit_entries = budget.limit_entries
        self.limit_bytes = budget.limit_bytes
        self.entry_limit_bytes = min(budget.entry_limit_bytes, budget.limit_bytes)
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0

    def takes(self, size_bytes: int) -> bool:
        """Whether an entry of this size is let in at all."""
        return size_bytes <= self.entry_limit_bytes and self.limit_entries > 0

    def is_over(self, entries: int) -> bool:
        """Whether so many entries, of `size_bytes` in all, are too much."""
        return self.size_bytes > self.limit_bytes or entries > self.limit_entries

    def __len__(self) -> int:
        raise NotImplementedError


class CacheCounts(NamedTuple):
    """What one kind of cache holds now, and what it did since the start."""

    entries: int = 0
    size_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @classmethod
    def of(cls, caches: Collection[BoundedCache]) -> "CacheCounts":
        """Those of several caches together."""
        return cls(
            sum(map(len, caches)),
            sum(cache.size_bytes for cache in caches),
            sum(cache.hits for cache in caches),
            sum(cache.misses for cache in caches),
            sum(cache.evictions for cache in caches),
        )


class PromptCache(BoundedCache):
    """LRU over prompts."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()

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
        if not self.takes(size_bytes):
            return False
        prompts = self._prompts
        old = prompts.pop(key, None)
        if old is not None:
            self.size_bytes -= old.size_bytes
        prompts[key] = prompt
        self.size_bytes += size_bytes
        while self.is_over(len(prompts)):
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
