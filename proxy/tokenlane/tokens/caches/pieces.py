"""A cache of pieces: what each piece of something long was made into.

Invariants:
- Keyed by the piece itself, so a hit is exact whatever clients send.
- Bounded in bytes; an entry over its own limit is not taken in at all.
- Safe between threads: entries are found without the lock; order and counts change under it.
- Counts only grow; the exporter takes differences.
"""

from sys import getsizeof
from typing import TypeVar

from tokenlane.tokens.caches.lru import BoundedCache

_Piece = TypeVar("_Piece")
# Memory of an entry besides both sizes: the value's header, hash and links of the dictionary.
_ENTRY_BYTES = 120


class PieceCache(BoundedCache[_Piece, bytes]):
    """LRU over pieces."""

    def get(self, pieces: list[_Piece]) -> list[bytes | None]:
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

    def put(self, pieces: list[_Piece], made: list[bytes]) -> None:
        """Take pieces in, evicting the least recently used."""
        items = self._items
        with self._lock:
            for piece, own in zip(pieces, made, strict=True):
                size = self.size_of(piece, own)
                if not self.takes(size) or piece in items:
                    continue
                items[piece] = own
                self.budget.grow(self, size)

    def size_of(self, key: _Piece, entry: bytes) -> int:
        """Return the memory of a piece."""
        return getsizeof(key) + len(entry) + _ENTRY_BYTES
