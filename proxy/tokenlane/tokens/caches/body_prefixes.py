"""The body-prefix cache: a body that begins as an earlier one did -> its hashes so far.

Invariants:
- A known body is compared byte by byte and not parsed: no digest is trusted.
- Parts that it has in common with a body are compared as that one arrives, and are in memory once.
- A mark stands behind a message, or within a long text, where the rendering has an exact cut:
  whatever follows, the ids before the mark are those of the whole.
- An entry holds a body and its hashes; of its ids those behind the last full block of each mark,
  and all of them where they are forwarded.
- A body that leaves a known one is kept once it is so much longer that reading it again would cost:
  many questions about one document keep the document once.
- Bounded in bytes and safe between threads, as `tokenlane.tokens.caches.marked`.
"""

from sys import getsizeof
from typing import Final, NamedTuple

from tokenlane.parts import (
    BODY_PART_BYTES,
    NAME_BYTES,
    BodyParts,
    RawBody,
    in_parts,
    size_of_parts,
    whole,
)
from tokenlane.protocols.bodies import Kind
from tokenlane.tokens.caches.listed_ids import PART_BYTES
from tokenlane.tokens.caches.marked import MarkedCache, MarkedEntry
from tokenlane.tokens.chat.residual import Residual

# Shorter bodies cost as much to parse as to search from their end. What many of them begin with is
# known by its first bytes, if it is as long as this.
LEAST_BYTES: Final = 32 * 1024
OPENING_BYTES: Final = 4 * 1024
_HEAD_BYTES: Final = 512
# How many messages are looked at, from the last one back, and how far.
_TRIES: Final = 16
_SEARCHED_BYTES: Final = 256 * 1024
# A message's role, whose end or beginning is looked for, may stand so far behind a mark.
_ROLE_BYTES: Final = 1024
# A branch that is no longer than this beyond its mark is read again rather than kept.
_READ_AGAIN_BYTES: Final = 8 * 1024
_ENTRY_BYTES: Final = 900
_MARK_BYTES: Final = 500
_PART_NAME_BYTES: Final = 250
_FORM_BYTES: Final = 8


class BodyMark(NamedTuple):
    """A place in a body, behind a message, or before the first one. at: bytes before it; messages,
    texts, part, within: so many messages, texts of theirs, parts of the residual and characters of
    its next one stand before it; ids_bytes: of packed ids; open_ids: those behind the last full
    block. last: the character of the rendering before it. Within a text, and so a message: opening:
    the bytes of that message before the text; split: how many texts of it stand before that one;
    chars: characters of the text before the place."""

    at: int
    messages: int
    texts: int
    part: int
    within: int
    ids_bytes: int
    open_ids: bytes
    last: str
    opening: bytes = b""
    split: int = 0
    chars: int = 0


class KnownBody(MarkedEntry):
    """A body that others may begin with, in parts. kind: of its prompt. front: up to its first
    message. is_plain: that names the messages once, at its end. root: all beside the messages that
    decides its ids and hashes. model: whose tokenizer read it. ids: packed, in parts; none where
    nobody gets them. blocks: their hashes. forms: of the prompt's messages. marks: ascending.
    seed: of the keys of short bodies, many of which begin with it up to its only mark; 0 for any
    other. text: that in which marks stand; none where all stand behind messages."""

    kind: Kind
    parts: list[bytes]
    front: bytes
    is_plain: bool
    model: str
    root: bytes
    forms: tuple[str, ...]
    residual: Residual
    ids: list[bytes]
    blocks: bytes
    marks: list[BodyMark]
    seed: int = 0
    text: str = ""

    @property
    def size_bytes(self) -> int:
        """The memory it takes; its residual may have left the cache of shapes."""
        body_bytes = size_of_parts(self.parts, BODY_PART_BYTES)
        ids_bytes = size_of_parts(self.ids, PART_BYTES)
        kept = body_bytes + ids_bytes + len(self.front) + len(self.root) + len(self.blocks)
        kept += getsizeof(self.text)
        named = _PART_NAME_BYTES * len(self.parts) + _MARK_BYTES * len(self.marks)
        named += 2 * (_HEAD_BYTES + _PART_NAME_BYTES) if self.seed else 0
        listed = named + _FORM_BYTES * len(self.forms)
        return kept + listed + self.residual.size_bytes + _ENTRY_BYTES

    def names(self) -> list[tuple[int, bytes]]:
        """Return the place of each mark, and of the end of each whole part, and the bytes before:
        what tools answer often ends alike."""
        parts = self.parts
        found = [
            (BODY_PART_BYTES * number, part[-NAME_BYTES:])
            for number, part in enumerate(parts, 1)
            if len(part) == BODY_PART_BYTES
        ]
        for mark in self.marks:
            number, at = divmod(mark.at, BODY_PART_BYTES)
            part = parts[number] if at else b""
            found.append((mark.at, _name(parts[number - 1] if number else b"", part, at)))
        if self.seed:
            found += [_head(parts[0], 0), _head(parts[0], self.own_at)]
        return found

    @property
    def own_at(self) -> int:
        """Where what an opening has alone may begin: its messages, or the end of what is beside
        them."""
        return min(len(self.front), self.marks[0].at - _HEAD_BYTES)

    def gives_way(self, mark: BodyMark, messages: int) -> bool:
        """Return whether a body of so many messages that goes on from the mark takes its place:
        what that loses costs little to read again."""
        last = self.marks[-1]
        lost_bytes = last.at - mark.at
        grown = messages > len(self.forms) and lost_bytes <= _READ_AGAIN_BYTES
        return (mark is last or grown) and not self.seed

    def has_place_for(self, mark: BodyMark, messages: int, more_bytes: int) -> bool:
        """Return whether a body of so many messages that goes on from the mark by so many bytes is
        kept: in this one's place, or beside it."""
        if self.gives_way(mark, messages):
            return True
        return more_bytes > _READ_AGAIN_BYTES and mark.at + more_bytes >= LEAST_BYTES

    def begins(self, body: BodyParts, size_bytes: int) -> bool:
        """Return whether a body begins with so many bytes of this one. size_bytes: no less than the
        parts which that body has in common with some known one."""
        count, at = len(body.same), 0
        size_bytes -= BODY_PART_BYTES * count
        if body.same != self.parts[:count]:
            return False
        for part in self.parts[count:]:
            if at >= size_bytes:
                break
            known = part if at + len(part) <= size_bytes else part[: size_bytes - at]
            if not body.rest.startswith(known, at):
                return False
            at += len(part)
        return True


class BodyPrefixCache(MarkedCache[KnownBody]):
    """LRU over bodies, of all models."""

    def part(self, name: bytes, number: int) -> bytes | None:
        """Return the whole part of that number of a known body, of which a part ends so."""
        known = self._named.get((BODY_PART_BYTES * (number + 1), name))
        if known is None or number >= len(known.parts):
            return None
        part = known.parts[number]
        return part if len(part) == BODY_PART_BYTES else None

    def in_parts(self, body: bytes) -> list[bytes]:
        """Return a body in parts, those of a known one where they are the same: what several bodies
        have in common is compared by identity from then on."""
        parts = in_parts(body, BODY_PART_BYTES)
        for number, part in enumerate(parts):
            known = self.part(part[-NAME_BYTES:], number)
            if known is None or known != part:
                break
            parts[number] = known
        return parts

    def find(self, kind: Kind, body: RawBody) -> tuple[KnownBody, BodyMark, bytes] | None:
        """Return the longest known beginning of a body that ends near its end, and what follows.
        Whether its prompt can be made from that shows later: the caller counts a hit or a miss."""
        if not self._named:
            return None
        if len(body) < LEAST_BYTES:
            found = self._opening(kind, BodyParts([], whole(body)))
        else:
            parts = self._compared(body) if isinstance(body, bytes) else body
            end = self._known_end(parts)
            found, within = self._found(kind, parts, end), self._within(parts)
            if within is not None and (found is None or found[1].at < within[1].at):
                found = within
            if found is None and parts.same:
                # Behind its last message a known one may have more that this one has, too.
                count = max(0, len(parts.same) - _SEARCHED_BYTES // BODY_PART_BYTES)
                rest = b"".join([*parts.same[count:], parts.rest])
                end += len(rest) - len(parts.rest)
                found = self._found(kind, BodyParts(parts.same[:count], rest), end)
        return None if found is None or found[0].kind is not kind else found

    def keep(self, new: KnownBody | None, known: KnownBody, mark: BodyMark) -> None:
        """Keep a body that begins as a known one does up to the mark; without one, mark that one as
        used."""
        if new is None:
            self.use(known)
        else:
            self.put(new, known if known.gives_way(mark, len(new.forms)) else None)

    def _opening(self, kind: Kind, body: BodyParts) -> tuple[KnownBody, BodyMark, bytes] | None:
        known = self._named.get(_head(body.rest, 0))
        if known is None:
            return None
        if not known.begins(body, known.marks[0].at):
            # Others may begin as that one does, with the same tools mostly.
            known = self._named.get(_head(body.rest, known.own_at))
            if known is None or not known.begins(body, known.marks[0].at):
                return self._found(kind, body, len(body))
        mark = known.marks[0]
        return known, mark, body.rest[mark.at :]

    def _known_end(self, body: BodyParts) -> int:
        """Return how far in the rest a known body may go on as this one does: none has the next
        part where none has its name, and what two of the same name have is searched for."""
        name = body.rest[BODY_PART_BYTES - NAME_BYTES : BODY_PART_BYTES]
        known = self.part(name, len(body.same))
        return BODY_PART_BYTES + _ROLE_BYTES if known is None else len(body.rest)

    def _found(
        self, kind: Kind, body: BodyParts, end: int
    ) -> tuple[KnownBody, BodyMark, bytes] | None:
        """end: as of `_known_end`."""
        rest = body.rest
        low = max(0, min(end, len(rest)) - _SEARCHED_BYTES)
        # The end of the last message, unless something behind it ends the same way; then from
        # message to message. A brace in between may belong to a text: then no entry has its name.
        found = self._at(body, rest.rfind(b"}]", low, end) + 1)
        # What a tool answers has no role in a response.
        role_at = rest.rfind(b'"role"', low, end)
        call_at = rest.rfind(b'"call_id"', low, end) if kind is Kind.RESPONSES else -1
        tries = _TRIES
        while found is None and tries > 0 and (at := max(role_at, call_at)) >= 0:
            tries -= 1
            found = self._at(body, rest.find(b"}", at) + 1)
            if found is None:
                found = self._at(body, rest.rfind(b"}", low, at) + 1)
            if at == role_at:
                role_at = rest.rfind(b'"role"', low, at)
            else:
                call_at = rest.rfind(b'"call_id"', low, at)
        # This does not mark it as used: `keep` does.
        return found

    def _within(self, body: BodyParts) -> tuple[KnownBody, BodyMark, bytes] | None:
        """Return the longest known beginning that ends within a text."""
        same = body.same
        name = (BODY_PART_BYTES * len(same), same[-1][-NAME_BYTES:]) if same else None
        known = self._named.get(name)
        if known is None or not known.text:
            return None
        for mark in reversed(known.marks):
            if mark.opening and known.begins(body, mark.at):
                count = min(mark.at // BODY_PART_BYTES, len(same))
                pieces = [*same[count:], body.rest]
                pieces[0] = pieces[0][mark.at - BODY_PART_BYTES * count :]
                return known, mark, b"".join(pieces)
        return None

    def _compared(self, body: bytes) -> BodyParts:
        """Return a body which came whole with the parts that it has in common with a known one."""
        same, at = list[bytes](), BODY_PART_BYTES
        while at <= len(body):
            part = self.part(body[at - NAME_BYTES : at], len(same))
            if part is None or not body.startswith(part, at - BODY_PART_BYTES):
                break
            same.append(part)
            at += BODY_PART_BYTES
        return BodyParts(same, body[BODY_PART_BYTES * len(same) :])

    def _at(self, body: BodyParts, at: int) -> tuple[KnownBody, BodyMark, bytes] | None:
        size_bytes = BODY_PART_BYTES * len(body.same) + at
        name = _name(body.same[-1] if body.same else b"", body.rest, at)
        known = self._named.get((size_bytes, name))
        if known is None:
            return None
        for mark in reversed(known.marks):
            if mark.at == size_bytes:
                return (known, mark, body.rest[at:]) if known.begins(body, size_bytes) else None
        return None


def _head(body: bytes, start: int) -> tuple[int, bytes]:
    """Return a name of bodies that have these bytes from a place on."""
    return start, body[start : start + _HEAD_BYTES]


def _name(before: bytes, part: bytes, at: int) -> bytes:
    """Return the last bytes before a place in a part. before: the part before it."""
    if at >= NAME_BYTES:
        return part[at - NAME_BYTES : at]
    return before[max(0, len(before) + at - NAME_BYTES) :] + part[:at]
