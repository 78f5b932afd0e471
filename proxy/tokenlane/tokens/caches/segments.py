"""The segment cache: a stretch of text between exact cuts -> its ids.

Invariants:
- Keyed by the text itself, so a hit is exact whatever clients send. One cache per model, or rather
  per tokenizer: nothing else changes a stretch's ids.
- Bounded in bytes; an entry over its own limit is not taken in at all.
- Safe between threads: entries are found without the lock; order and counts change under it.
- Counts only grow; the exporter takes differences.
"""

from collections.abc import Iterator
from itertools import pairwise
from sys import getsizeof

from tokenlane.tokens.caches.lru import BoundedCache
from tokenlane.tokens.encode.encoder import Encoder

# Memory of an entry besides its text and ids: the ids' header, hash and links of the dictionary.
_ENTRY_BYTES = 120
# Text per step of `stretches`: about 0.1 ms of searching and looking up, and at the usual speeds
# no encode call that holds a thread for long.
_WINDOW_CHARS = 32 * 1024


class SegmentCache(BoundedCache[str, bytes]):
    """LRU over stretches of text."""

    def get(self, pieces: list[str]) -> list[bytes | None]:
        """Return the ids of each piece, None where they are not known; the known ones are now the
        most recently used."""
        items = self._items
        found = [items.get(piece) for piece in pieces]
        with self._lock:
            hits = 0
            for piece, ids in zip(pieces, found, strict=True):
                if ids is not None:
                    hits += 1
                    if piece in items:
                        items.move_to_end(piece)
            self.hits += hits
            self.misses += len(pieces) - hits
        return found

    def put(self, pieces: list[str], ids: list[bytes]) -> None:
        """Take pieces in, evicting the least recently used."""
        items = self._items
        with self._lock:
            for piece, own in zip(pieces, ids, strict=True):
                size = self.size_of(piece, own)
                if not self.takes(size) or piece in items:
                    continue
                items[piece] = own
                self.budget.grow(self, size)

    def size_of(self, key: str, entry: bytes) -> int:
        """Return the memory of a stretch."""
        return getsizeof(key) + len(entry) + _ENTRY_BYTES


def stretches(encoder: Encoder, text: str, at: int) -> Iterator[tuple[list[int], list[str]]]:
    """Yield `text` from `at` on (0, or where a cut is exact), cut wherever that is exact: where
    pieces begin, and the pieces, for about every 32 KiB of it. The ids of all pieces, joined, are
    those of the text. No step takes long, except over a piece that cannot be cut."""
    window = _WINDOW_CHARS
    while at < len(text):
        until = at + window
        bounds = encoder.starts(text, at, until)
        if not bounds or bounds[0] != at:
            bounds.insert(0, at)
        if until >= len(text):
            bounds.append(len(text))
        elif len(bounds) == 1:
            window *= 2
            continue
        pieces = [text[start:end] for start, end in pairwise(bounds)]
        if at == 0:
            pieces[0] = encoder.begun(pieces[0])
        at = bounds.pop()
        yield bounds, pieces
        window = _WINDOW_CHARS
