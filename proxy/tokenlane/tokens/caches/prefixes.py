"""The prefix cache: text that begins as an earlier one did -> ids and block hashes so far.

Invariants:
- A prefix ends at an exact cut, and its text is compared with the new one's character by
  character: it is never assumed that a template renders a longer conversation as a longer text, and
  no digest is trusted.
- An entry is a whole prompt with marks: places where its text may be left, and the ids up to
  there. A prompt that goes on where an entry ended takes its place, so a conversation is kept
  once and not once for every turn.
- Bounded in bytes and safe between threads, as `tokenlane.tokens.caches.marked`.
"""

from collections.abc import Iterator
from sys import getsizeof
from typing import Final, NamedTuple

from tokenlane.tokens.caches.marked import MarkedCache, MarkedEntry
from tokenlane.tokens.encode.encoder import Encoder

# Characters before a place, and at the head of its text, that name it in the table of marks.
_NEAR_CHARS: Final = 192
_HEAD_CHARS: Final = 64
# Places kept and tried: the last ones for the next turn or an edit near the end, the first ones
# for another conversation with the same system prompt.
_FIRST_MARKS: Final = 8
_LAST_MARKS: Final = 32
# Where to look for the first places, and how much of the end to look at first.
_FIRST_CHARS: Final = 32 * 1024
_LAST_CHARS: Final = 4 * 1024
_COMPARED_CHARS: Final = 32 * 1024
# At most so much stands behind the cut before a generation prompt.
_GENERATION_CHARS: Final = 48
_ENTRY_BYTES: Final = 500
_MARK_BYTES: Final = 250


class Mark(NamedTuple):
    """A place: characters of text before it, packed bytes of ids before it, and its name."""

    chars: int
    ids_bytes: int
    name: int


class Prefix(MarkedEntry):
    """A prompt that others may begin with. root: all beside the text that decides its ids and
    hashes. ids: packed; blocks: their hashes; marks: ascending."""

    root: bytes
    text: str
    ids: bytes
    blocks: bytes
    marks: list[Mark]

    @property
    def size_bytes(self) -> int:
        """The memory it takes."""
        kept = getsizeof(self.root) + getsizeof(self.text) + len(self.ids) + len(self.blocks)
        return kept + _ENTRY_BYTES + len(self.marks) * _MARK_BYTES

    def names(self) -> list[int]:
        """Return the name of each mark."""
        return [mark.name for mark in self.marks]


class KnownPrefix(NamedTuple):
    """A prefix and how far it goes."""

    prefix: Prefix
    mark: Mark


class PrefixCache(MarkedCache[Prefix]):
    """LRU over prompts by the beginnings they share with later ones."""

    def find(
        self, encoder: Encoder, root: bytes, text: str, *, words: bool = False
    ) -> KnownPrefix | None:
        """Return the longest known beginning of `text` that ends near its end, or near its start.
        words: as `Encoder.starts`'s."""
        found = self._find(encoder, root, text, words)
        with self._lock:
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
                if id(found.prefix) in self._items:
                    self._items.move_to_end(id(found.prefix))
        return found

    def _find(self, encoder: Encoder, root: bytes, text: str, words: bool) -> KnownPrefix | None:
        named = self._named
        if not named:
            return None
        for at in _places(encoder, text, words):
            name = _name(root, text, at)
            prefix = named.get(name)
            if prefix is None or prefix.root != root or not _same(text, prefix.text, at):
                continue
            for mark in reversed(prefix.marks):
                if mark.chars == at:
                    return KnownPrefix(prefix, mark)
        return None


def marked(
    root: bytes, text: str, found: KnownPrefix | None, starts: list[int], ids_bytes: list[int]
) -> list[Mark]:
    """Return the marks of a prompt: those it shares with the prefix found, then those of its own
    places (`starts`, ascending) with the bytes of ids before each. As many as are kept."""
    marks = []
    if found is not None:
        marks = [mark for mark in found.prefix.marks if mark.chars <= found.mark.chars]
    own = [place for place in zip(starts, ids_bytes, strict=True) if place[0] > 0]
    room = _FIRST_MARKS - len(marks)
    if len(own) > _FIRST_MARKS + _LAST_MARKS:
        own = own[: max(room, 0)] + own[-_LAST_MARKS:]
    marks += [Mark(at, before, _name(root, text, at)) for at, before in own]
    if len(marks) > _FIRST_MARKS + _LAST_MARKS:
        marks = marks[:_FIRST_MARKS] + marks[-_LAST_MARKS:]
    return marks


def replaced(found: KnownPrefix | None) -> Prefix | None:
    """Return the prefix, if nothing of it is lost when the prompt that was found to begin with it
    takes its place: all its marks are shared, or those in a generation prompt remain."""
    if found is None:
        return None
    prefix, mark = found
    near = len(prefix.text) - mark.chars <= _GENERATION_CHARS
    return prefix if near or mark is prefix.marks[-1] else None


def _name(root: bytes, text: str, at: int) -> int:
    near = text[max(0, at - _NEAR_CHARS) : at]
    return hash((root, at, near, text[: min(at, _HEAD_CHARS)]))


def _same(one: str, other: str, end: int) -> bool:
    """Return whether `one` begins with the first `end` characters of `other`. Mostly it begins with
    the whole of it; else by short slices, whose copies stay in the processor's cache, where a copy
    of all would have to be given memory first."""
    return one.startswith(other) or all(
        one[at : min(at + _COMPARED_CHARS, end)] == other[at : min(at + _COMPARED_CHARS, end)]
        for at in range(0, end, _COMPARED_CHARS)
    )


def _places(encoder: Encoder, text: str, words: bool) -> Iterator[int]:
    """Yield the places to try, the last of the text first: a bounded number."""
    end = len(text)
    span = _LAST_CHARS if encoder.cuts_anywhere else end
    left = _LAST_MARKS
    while end > 0 and left > 0:
        begin = max(0, end - span)
        places = encoder.starts(text, begin, end, words=words)[-left:]
        yield from reversed(places)
        left -= len(places)
        end = begin
        span *= 2
    if left <= 0:
        first = encoder.starts(text, 0, _FIRST_CHARS, words=words)
        yield from reversed(first[:_FIRST_MARKS])
