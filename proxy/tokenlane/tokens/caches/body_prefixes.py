"""The body-prefix cache: a chat's body that begins as an earlier one did -> its hashes so far.

Invariants:
- A known body is compared byte by byte and not parsed: no digest is trusted.
- A mark stands behind a message, where the rendering of it ends at an exact cut: whatever follows,
  the ids before the mark are those of the whole.
- An entry holds a body, its ids and their hashes.
- Bounded in bytes; an entry over its own limit is not taken in at all.
- Safe between threads: entries never change, a lookup needs no lock, order and counts change
  under it.
"""

from collections import OrderedDict
from typing import Final

from tokenlane.tokens.caches.lru import BoundedCache, Budget
from tokenlane.tokens.chat.residual import Residual

# Shorter bodies cost as much to look up as to parse.
LEAST_BYTES: Final = 32 * 1024
# Bytes before a mark, which name it.
NEAR_BYTES: Final = 96
# How many messages are looked at, from the last one back, and how far.
_TRIES: Final = 16
_SEARCHED_BYTES: Final = 64 * 1024
_ENTRY_BYTES, _MARK_BYTES, _ROLE_BYTES = 900, 500, 8


class BodyMark:
    """A place in a body, behind a message. at: bytes before it; messages, part: so many messages,
    and parts of the residual, stand before it; ids_bytes: of packed ids. last: the character of the
    rendering before it."""

    __slots__ = ("at", "ids_bytes", "last", "messages", "part")

    def __init__(self, at: int, messages: int, part: int, ids_bytes: int, last: str) -> None:
        self.at = at
        self.messages = messages
        self.part = part
        self.ids_bytes = ids_bytes
        self.last = last


class KnownBody:
    """A body that others may begin with. front_bytes: up to its first message. root: all beside the
    messages that decides its ids and hashes. model: whose tokenizer read it. ids: packed. blocks:
    their hashes. marks: ascending."""

    __slots__ = (
        "blocks", "body", "front_bytes", "ids", "marks", "model", "residual", "roles", "root",
        "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        body: bytes,
        front_bytes: int,
        model: str,
        root: bytes,
        roles: tuple[str, ...],
        residual: Residual,
        ids: bytes,
        blocks: bytes,
        marks: list[BodyMark],
    ) -> None:
        self.body = body
        self.front_bytes = front_bytes
        self.model = model
        self.root = root
        self.roles = roles
        self.residual = residual
        self.ids = ids
        self.blocks = blocks
        self.marks = marks
        kept = len(body) + len(root) + len(ids) + len(blocks) + _ROLE_BYTES * len(roles)
        self.size_bytes = kept + _ENTRY_BYTES + _MARK_BYTES * len(marks)


class BodyPrefixCache(BoundedCache):
    """LRU over bodies, of all models."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._named: dict[bytes, KnownBody] = {}
        self._order: OrderedDict[KnownBody, None] = OrderedDict()
        self._lock = budget.lock

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
        # This does not mark it as used: the body that continues it will be put in.
        return found

    def _at(self, body: bytes, at: int) -> tuple[KnownBody, BodyMark] | None:
        known = self._named.get(body[max(0, at - NEAR_BYTES) : at])
        if known is None:
            return None
        for mark in reversed(known.marks):
            if mark.at == at:
                same = body.startswith(memoryview(known.body)[:at])
                return (known, mark) if same else None
        return None

    def put(self, new: KnownBody, old: KnownBody | None = None) -> None:
        """Take a body in. old: it goes on where this one ended, and so takes its place."""
        if not new.marks or not self.takes(new.size_bytes):
            return
        size_bytes = new.size_bytes
        with self._lock:
            if old is not None and old in self._order:
                self._drop(old)
                size_bytes -= old.size_bytes
            self._order[new] = None
            for mark in new.marks:
                self._named[new.body[max(0, mark.at - NEAR_BYTES) : mark.at]] = new
            self.budget.grow(self, size_bytes)

    def clear(self) -> None:
        """Forget everything (the blocks of all entries changed their size)."""
        with self._lock:
            self._named.clear()
            self._order.clear()
            self.budget.grow(self, -self.size_bytes)

    def forget_oldest(self) -> int:
        """Drop the least recently used body."""
        oldest = next(iter(self._order))
        self._drop(oldest)
        return oldest.size_bytes

    def _drop(self, known: KnownBody) -> None:
        del self._order[known]
        for mark in known.marks:
            name = known.body[max(0, mark.at - NEAR_BYTES) : mark.at]
            if self._named.get(name) is known:
                del self._named[name]

    def __len__(self) -> int:
        return len(self._order)
