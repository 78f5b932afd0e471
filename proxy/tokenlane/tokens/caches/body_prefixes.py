"""The body-prefix cache: a chat's body that begins as an earlier one did -> its hashes so far.

Invariants:
- A known body is compared byte by byte and not parsed: no digest is trusted.
- A mark stands behind a message, where the rendering of it ends at an exact cut: whatever follows,
  the ids before the mark are those of the whole.
- An entry holds a body and its hashes; of its ids those behind the last full block of each mark,
  and all of them where they are forwarded.
- A body that leaves a known one is kept once it is so much longer that reading it again would cost:
  many questions about one document keep the document once.
- Bounded in bytes and safe between threads, as `tokenlane.tokens.caches.marked`.
"""

from sys import getsizeof
from typing import Final, NamedTuple

from tokenlane.tokens.caches.marked import MarkedCache, MarkedEntry
from tokenlane.tokens.chat.residual import Residual

# Shorter bodies cost as much to look up as to parse.
LEAST_BYTES: Final = 32 * 1024
# Bytes before a mark, which name it.
NEAR_BYTES: Final = 96
# How many messages are looked at, from the last one back, and how far.
_TRIES: Final = 16
_SEARCHED_BYTES: Final = 64 * 1024
# A branch that is no longer than this beyond its mark is read again rather than kept.
_READ_AGAIN_BYTES: Final = 8 * 1024
_ENTRY_BYTES: Final = 900
_MARK_BYTES: Final = 500
_ROLE_BYTES: Final = 8


class BodyMark(NamedTuple):
    """A place in a body, behind a message. at: bytes before it; messages, part: so many messages,
    and parts of the residual, stand before it; ids_bytes: of packed ids; open_ids: those behind
    the last full block. last: the character of the rendering before it."""

    at: int
    messages: int
    part: int
    ids_bytes: int
    open_ids: bytes
    last: str


class KnownBody(MarkedEntry):
    """A body that others may begin with. front_bytes: up to its first message. root: all beside the
    messages that decides its ids and hashes. model: whose tokenizer read it. ids: packed, in
    parts; none where nobody gets them. blocks: their hashes. marks: ascending."""

    body: bytes
    front_bytes: int
    model: str
    root: bytes
    roles: tuple[str, ...]
    residual: Residual
    ids: list[bytes]
    blocks: bytes
    marks: list[BodyMark]

    @property
    def size_bytes(self) -> int:
        """The memory it takes; its residual may have left the cache of shapes."""
        ids_bytes = sum(map(getsizeof, self.ids))
        kept = len(self.body) + len(self.root) + ids_bytes + len(self.blocks)
        listed = _ROLE_BYTES * len(self.roles) + _MARK_BYTES * len(self.marks)
        return kept + listed + self.residual.size_bytes + _ENTRY_BYTES

    def names(self) -> list[bytes]:
        """Return the bytes before each mark."""
        return [self.body[max(0, mark.at - NEAR_BYTES) : mark.at] for mark in self.marks]


class BodyPrefixCache(MarkedCache[KnownBody]):
    """LRU over bodies, of all models."""

    def find(self, body: bytes) -> tuple[KnownBody, BodyMark] | None:
        """Return the longest known beginning of a body that ends near its end. Whether its prompt
        can be made from that shows later: the caller counts a hit or a miss."""
        if not self._named:
            return None
        # The end of the last message, unless something behind it ends the same way; then from
        # message to message. A brace in between may belong to a text: then no entry has its name.
        found = self._at(body, body.rfind(b"}]") + 1)
        low = max(0, len(body) - _SEARCHED_BYTES)
        at, tries = len(body), _TRIES
        while found is None and tries > 0:
            tries -= 1
            at = body.rfind(b'"role"', low, at)
            if at < 0:
                break
            found = self._at(body, body.find(b"}", at) + 1)
            if found is None:
                found = self._at(body, body.rfind(b"}", low, at) + 1)
        # This does not mark it as used: `keep` does.
        return found

    def keep(self, new: KnownBody, known: KnownBody, mark: BodyMark) -> None:
        """Keep a body that begins as a known one does up to the mark, or mark that one as used."""
        if mark is known.marks[-1]:
            self.put(new, known)
        elif len(new.body) - mark.at > _READ_AGAIN_BYTES:
            self.put(new)
        else:
            self.use(known)

    def _at(self, body: bytes, at: int) -> tuple[KnownBody, BodyMark] | None:
        known = self._named.get(body[max(0, at - NEAR_BYTES) : at])
        if known is None:
            return None
        for mark in reversed(known.marks):
            if mark.at == at:
                same = body.startswith(memoryview(known.body)[:at])
                return (known, mark) if same else None
        return None
