"""How the memory for token caches is divided: a part for each kind, all models together.

Conversations need the prefixes, whose hits save most; whole requests hit where prompts repeat.
"""

from typing import Final, NamedTuple, Self

from tokenlane.config.settings import TokenSettings
from tokenlane.tokens.caches.lru import Budget, CacheCounts
from tokenlane.tokens.caches.openings import OpeningCache
from tokenlane.tokens.caches.prefixes import PrefixCache
from tokenlane.tokens.caches.segments import SegmentCache
from tokenlane.tokens.caches.shapes import ShapeCache

# 7.4 MiB each of the default: of requests, bodies, shapes, openings, segments, prefixes and listed
# ids.
_PARTS_OF_KINDS: Final = (5, 5, 1, 1, 4, 8, 2)
_PARTS: Final = sum(_PARTS_OF_KINDS)
# The largest share of its kind's memory that one entry may take: a few long ones would evict all
# others.
_ENTRIES: Final = 16


class CacheBudgets(NamedTuple):
    """The budget of each kind of cache."""

    request: Budget
    body: Budget
    shape: Budget
    opening: Budget
    segment: Budget
    prefix: Budget
    listed: Budget

    @classmethod
    def of(cls, settings: TokenSettings) -> Self:
        """Return new, empty budgets."""

        def budget(parts: int) -> Budget:
            limit_bytes = settings.cache_limit_bytes * parts // _PARTS
            entry_bytes = min(settings.cache_entry_limit_bytes, limit_bytes // _ENTRIES)
            return Budget(limit_bytes, entry_bytes)

        return cls(*map(budget, _PARTS_OF_KINDS))

    def by_kind(self) -> dict[str, Budget]:
        """Return the budgets by the kind's name (metric label), in the order of the lookups."""
        return self._asdict()

    def counts(self) -> dict[str, CacheCounts]:
        """Return the counts by kind of cache, all models together."""
        return {kind: CacheCounts.of(one.caches) for kind, one in self.by_kind().items()}


class TokenCaches(NamedTuple):
    """The caches that one model's jobs share."""

    shapes: ShapeCache
    openings: OpeningCache
    segments: SegmentCache
    prefixes: PrefixCache

    @classmethod
    def of(cls, budgets: CacheBudgets) -> Self:
        """Return empty caches."""
        return cls(
            ShapeCache(budgets.shape),
            OpeningCache(budgets.opening),
            SegmentCache(budgets.segment),
            PrefixCache(budgets.prefix),
        )
