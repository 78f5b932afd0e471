"""The opening cache: what many short prompts begin with, a system prompt mostly -> ids and hashes.

Invariants:
- An opening ends at an exact cut of the text that asks, and is compared with it character by
  character: the ids are those of the whole text, whatever a template does.
- Kept from the second time it is seen: an opening seen once is not worth its memory.
- Used on the loop alone; so there is no lock.
- Bounded in bytes; counts only grow.
"""

from sys import getsizeof
from typing import Final

from tokenlane.tokens.caches.lru import BoundedCache, Budget
from tokenlane.tokens.encode.encoder import Encoder

# Shorter openings cost as much to look up as to encode. So many characters also name an opening,
# and so many openings may share them.
_LEAST_CHARS: Final = 512
_ALIKE: Final = 4
# Where an opening may end: at one of the first cuts, in the first part of a text.
_PLACES: Final = 4
_SEARCHED_CHARS: Final = 64 * 1024
# Beginnings seen once that are remembered, twice as many at most.
_SEEN: Final = 4096
_ENTRY_BYTES: Final = 420


class Opening:
    """text: its characters; ids: packed, with what specials put in front; blocks: the hashes of
    its full blocks. uses: how often it was found."""

    __slots__ = ("blocks", "chars", "ids", "size_bytes", "text", "uses")

    def __init__(self, text: str, ids: bytes, blocks: bytes) -> None:
        self.text = text
        self.chars = len(text)
        self.ids = ids
        self.blocks = blocks
        self.uses = 0
        self.size_bytes = getsizeof(text) + len(ids) + len(blocks) + _ENTRY_BYTES


class OpeningCache(BoundedCache[tuple[bytes, str], list[Opening]]):
    """LRU over openings."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._entries = 0
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()

    def find(
        self, encoder: Encoder, root: bytes, text: str, *, words: bool = False
    ) -> Opening | None:
        """Return the longest opening of `text`. root: all beside the text that decides ids and
        hashes. words: as `Encoder.starts`'s."""
        key = root, text[:_LEAST_CHARS]
        for opening in self._items.get(key, ()):
            at = opening.chars
            if text.startswith(opening.text) and encoder.is_cut(text, at, words=words):
                self.hits += 1
                opening.uses += 1
                self._items.move_to_end(key)
                return opening
        self.misses += 1
        return None

    def ends_at(self, encoder: Encoder, root: bytes, text: str, *, words: bool = False) -> int:
        """Return where an opening of `text` ends that should be kept, as it was seen before; else
        0. words: as `Encoder.starts`'s."""
        if len(text) < _LEAST_CHARS or not encoder.cuts_anywhere or not self.budget.limit_bytes:
            return 0
        end = 0
        places = encoder.starts(text, _LEAST_CHARS, _SEARCHED_CHARS, words=words)
        for at in places[:_PLACES]:
            name = hash((root, text[:at]))
            if name in self._seen or name in self._seen_before:
                end = at
            else:
                self._seen.add(name)
        if len(self._seen) > _SEEN:
            self._seen_before, self._seen = self._seen, set()
        return end

    def put(self, root: bytes, opening: Opening) -> None:
        """Keep an opening, the longest of its like first."""
        key = root, opening.text[:_LEAST_CHARS]
        opening.size_bytes += getsizeof(root)
        if opening.chars > _LEAST_CHARS:  # otherwise the key is the text itself
            opening.size_bytes += getsizeof(key[1])
        if not self.takes(opening.size_bytes):
            return
        alike = self._items.setdefault(key, [])
        alike.append(opening)
        alike.sort(key=_longest_first)
        self._entries += 1
        grown_bytes = opening.size_bytes
        if len(alike) > _ALIKE:
            grown_bytes -= alike.pop(0 if alike[-1] is opening else -1).size_bytes
            self._entries -= 1
            self.evictions += 1
        self.budget.grow(self, grown_bytes)

    def forget_oldest(self) -> int:
        """Drop the opening used least lately, and those that begin as it does."""
        alike = self._items.popitem(last=False)[1]
        self._entries -= len(alike)
        return sum([opening.size_bytes for opening in alike])

    def __len__(self) -> int:
        return self._entries


def _longest_first(opening: Opening) -> int:
    return -opening.chars
