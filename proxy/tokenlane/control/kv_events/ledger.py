"""The account of one cache (a replica's data-parallel rank): which of our block hashes it holds.

An engine names blocks by its own hashes, in its own block size. What it stores comes with the
token ids, so the ledger chains our own hashes alongside, and neither hash function nor block size
has to match: one engine block completes none, one or several of ours.

Invariants:
- Copies count: an engine stores the same block once per physical copy and removes it as often.
  A report of reused blocks (vLLM's `kv_cache_report_mode: full`, which any request may ask for) is
  no copy. Only one of a single block looks like one, and counts.
- A block of ours is held while an engine block that completes it is. There are several such where
  prompts part ways inside an engine block; where block sizes are the same there is one.
- Blocks behind an unknown parent, and unreadable ones, are left out: what is claimed is true. So
  are blocks told by their keys alone that the other memory never held.
- `take` gives what has changed since it was last called, net; `pieces` gives all of it.
- At most `limit_blocks` engine blocks are kept; what comes beyond them is left out.
"""

from collections.abc import Iterator
from typing import TypeGuard

import msgspec

from tokenlane.control.kv_events.batches import Event, Key, Medium, Removed, Stored
from tokenlane.prompt import HASH_BYTES
from tokenlane.protocols.inspection import short_salt
from tokenlane.tokens.blocks import block_hashes, more_hashes
from tokenlane.tokens.keys import salt_of

# A dict entry, the key's int and the packed hash, measured on CPython 3.11 (x86-64).
ENTRY_BYTES = 150

# No model has as many groups of attention; what is told of more is left out.
_GROUP_LIMIT = 64
# Caches of other kinds (sliding windows, state spaces) do not hold prefixes: what they drop is
# still there for the layers that decide a hit.
_PREFIX_KINDS = ("", "full_attention", "mla_attention")


class _Piece(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An engine block where block sizes do not divide. own: packed hashes of ours that it
    completes. last: our last hash up to here (b"" if none). tail: packed ids behind it. salt:
    for the first hash."""

    own: bytes
    last: bytes
    tail: bytes
    salt: bytes


_Value = bytes | _Piece


def _own(value: _Value) -> bytes:
    return value if isinstance(value, bytes) else value.own


def _alone(value: _Value) -> TypeGuard[bytes]:
    """Whether this is one hash, and no other engine block completes it: their blocks are ours."""
    return isinstance(value, bytes) and len(value) == HASH_BYTES


class LedgerContents(msgspec.Struct, frozen=True, array_like=True):
    """All that a ledger holds: blocks by medium, their further copies, and the groups of attention
    that are left out."""

    shelves: dict[Medium, dict[Key, _Value]]
    copies: list[tuple[Medium, Key, int]]
    other_groups: set[int]

    @property
    def blocks(self) -> int:
        """Engine blocks, copies counted once."""
        return sum(map(len, self.shelves.values()))

    @property
    def whole(self) -> bool:
        """Whether its hashes are whole ones."""
        values = (value for shelf in self.shelves.values() for value in shelf.values())
        return not any(len(_own(value)) % HASH_BYTES for value in values)


class LedgerChange(msgspec.Struct, frozen=True):
    """Packed hashes that came and went since the last look, in no order."""

    stored: bytes
    removed: bytes


class Ledger:
    """See the module's docstring. model: what requests call the model; block_tokens: ours.

    orphans, unreadable: engine blocks left out, and why. left_out: those beyond the limit.
    """

    def __init__(self, model: str, block_tokens: int, limit_blocks: int) -> None:
        self._model = model
        self._block_tokens = block_tokens
        self._limit_blocks = limit_blocks
        self._shelves: dict[Medium, dict[Key, _Value]] = {medium: {} for medium in Medium}
        self._copies: dict[tuple[Medium, Key], int] = {}
        # By hash, the engine blocks that complete it, of those that may share any.
        self._holders: dict[Medium, dict[bytes, int]] = {medium: {} for medium in Medium}
        self._other_groups: set[int] = set()
        self._fresh: dict[Medium, set[bytes]] = {medium: set() for medium in Medium}
        self._gone: dict[Medium, set[bytes]] = {medium: set() for medium in Medium}
        self.orphans = 0
        self.unreadable = 0
        self.left_out = 0

    def apply(self, event: Event) -> None:
        """One event, in its order."""
        if isinstance(event, Stored):
            self._stored(event)
        elif isinstance(event, Removed):
            self._removed(event)
        else:
            self.clear()

    def clear(self) -> None:
        """The cache is empty."""
        for medium, shelf in self._shelves.items():
            for value in shelf.values():
                self._note(medium, value, held=False)
            shelf.clear()
        self._copies.clear()

    def reset(self) -> None:
        """As `clear`, where nobody wants to know what went: no walk over the blocks."""
        self._shelves = {medium: {} for medium in Medium}
        self._copies.clear()
        self._other_groups = set()
        for medium in Medium:
            self._holders[medium].clear()
            self._fresh[medium].clear()
            self._gone[medium].clear()
        self.left_out = 0

    def contents(self) -> LedgerContents:
        """All that is held, to be packed at once: it goes on changing."""
        copies = [(medium, key, count) for (medium, key), count in self._copies.items()]
        return LedgerContents(self._shelves, copies, self._other_groups)

    def restore(self, contents: LedgerContents) -> bool:
        """Hold what another ledger held. `take` does not tell of it. False, and no change, where
        it is more than may be kept, or nonsense."""
        if contents.blocks > self._limit_blocks or not contents.whole:
            return False
        self.reset()
        self._shelves |= contents.shelves
        for medium, shelf in contents.shelves.items():
            for value in shelf.values():
                if not _alone(value):
                    self._turned(medium, _own(value), held=True)
        self._copies = {(medium, key): count for medium, key, count in contents.copies}
        self._other_groups = contents.other_groups
        return True

    def take(self) -> dict[Medium, LedgerChange]:
        """What has changed, by medium; only where something has."""
        changes = {}
        for medium in Medium:
            fresh, gone = self._fresh[medium], self._gone[medium]
            if fresh or gone:
                changes[medium] = LedgerChange(b"".join(fresh), b"".join(gone))
                fresh.clear()
                gone.clear()
        return changes

    def pieces(self, medium: Medium) -> Iterator[bytes]:
        """Packed hashes held, in pieces of a few."""
        for value in self._shelves[medium].values():
            if own := _own(value):
                yield own

    def held_blocks(self, medium: Medium) -> int:
        """Engine blocks held, copies counted once."""
        return len(self._shelves[medium])

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated."""
        held, shared = self._shelves.values(), self._holders.values()
        return ENTRY_BYTES * (sum(map(len, held)) + sum(map(len, shared)))

    def _stored(self, event: Stored) -> None:
        if event.kind not in _PREFIX_KINDS and event.group < _GROUP_LIMIT:
            self._other_groups.add(event.group)
        if self._left_out(event.group):
            return
        found = self._values(event)
        shelf, copies = self._shelves[event.medium], self._copies
        # Several blocks from the first on, some of them held, say what was reused. A single one is
        # more often a copy: the first block is computed anew by each prompt that ends in it. Not to
        # count those would drop it, and all that is held behind it, with the first copy.
        report = event.parent is None and len(event.keys) > 1
        for key, value in found:
            if key in shelf:
                if report:
                    continue
                copies[event.medium, key] = copies.get((event.medium, key), 0) + 1
            elif sum(map(len, self._shelves.values())) >= self._limit_blocks:
                self.left_out += 1
            else:
                shelf[key] = value
                self._note(event.medium, value, held=True)

    def _removed(self, event: Removed) -> None:
        if self._left_out(event.group):
            return
        shelf, copies = self._shelves[event.medium], self._copies
        for key in event.keys:
            more = copies.pop((event.medium, key), 0)
            if more > 1:
                copies[event.medium, key] = more - 1
            elif not more:
                value = shelf.pop(key, None)
                if value is not None:
                    self._note(event.medium, value, held=False)

    def _left_out(self, group: int) -> bool:
        return group in self._other_groups or group >= _GROUP_LIMIT

    def _values(self, event: Stored) -> list[tuple[Key, _Value]]:
        """Our side of each block that can be known."""
        if not event.block_tokens:
            named = [(key, self._find(key)) for key in event.keys]
            found = [(key, value) for key, value in named if value is not None]
            self.orphans += len(named) - len(found)
            return found
        values = self._chained(event)
        if values is None:
            self.orphans += len(event.keys)
            return []
        self.unreadable += len(event.keys) - len(values)
        return list(zip(event.keys, values))

    def _chained(self, event: Stored) -> list[_Value] | None:
        """Our side of each readable block; None where the parent is unknown."""
        last = tail = b""
        salt = salt_of(event.adapter or self._model, event.salt and short_salt(event.salt))
        if event.parent is not None:
            before = self._find(event.parent)
            if before is None:
                return None
            if isinstance(before, bytes):
                last = before[-HASH_BYTES:]
            else:
                last, tail, salt = before.last, before.tail, before.salt
        size, own_size = event.block_tokens, self._block_tokens
        ids = tail + event.ids[: 4 * event.readable * size]
        own = more_hashes(ids, own_size, last) if last else block_hashes(ids, own_size, salt)
        if not tail and size % own_size == 0:
            step = size // own_size * HASH_BYTES
            return [own[at : at + step] for at in range(0, len(own), step)]
        values: list[_Value] = []
        tokens, done = len(tail) // 4, 0
        for _ in range(event.readable):
            tokens += size
            full = tokens // own_size
            piece = own[done * HASH_BYTES : full * HASH_BYTES]
            last, done = piece[-HASH_BYTES:] or last, full
            values.append(_Piece(piece, last, ids[4 * full * own_size : 4 * tokens], salt))
        return values

    def _find(self, key: Key) -> _Value | None:
        for shelf in self._shelves.values():
            value = shelf.get(key)
            if value is not None:
                return value
        return None

    def _note(self, medium: Medium, value: _Value, *, held: bool) -> None:
        if not _alone(value):
            for one in self._turned(medium, _own(value), held=held):
                self._note(medium, one, held=held)
            return
        into, against = self._fresh[medium], self._gone[medium]
        if not held:
            into, against = against, into
        if value in against:
            against.discard(value)
        else:
            into.add(value)

    def _turned(self, medium: Medium, own: bytes, *, held: bool) -> list[bytes]:
        """Count a holder more, or less, of these hashes; return those that got their first one,
        or lost their last."""
        holders, turned = self._holders[medium], []
        for at in range(0, len(own), HASH_BYTES):
            one = own[at : at + HASH_BYTES]
            before = holders.pop(one, 0)
            after = before + 1 if held else before - 1
            if after:
                holders[one] = after
            if not before or not after:
                turned.append(one)
        return turned

    def __repr__(self) -> str:
        held = ", ".join(f"{medium}: {len(shelf)}" for medium, shelf in self._shelves.items())
        return f"<Ledger {held} blocks>"
