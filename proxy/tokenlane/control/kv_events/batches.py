"""KV event batches as vLLM publishes them (msgpack), and as other engines and versions do.

Invariants:
- Events come as maps with a `type`, or as arrays that begin with it; fields not known here are
  ignored, fields left out have their default.
- Nothing a publisher sends raises anything but Garbled, and that for a whole payload only: an
  event that cannot be read is counted and left out.
- What a message costs is bounded by its limits: nothing is made of values before they are counted.
- A block is readable where our own hash of it can be known from its token ids, its model and its
  salt. Blocks of prompts with images, of adapters without a name and the like are not.
- A block off the GPU may come without token ids (vLLM's offloading connector): its key has to be
  known from the GPU.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from tokenlane.errors import UNREADABLE

Key = int | bytes
"""What an engine calls a block: 64 bits of its hash, or all 32 bytes."""

# Of one message: no step of an engine stores or evicts more, and this is 40 ms of the control
# plane's loop.
_EVENTS_LIMIT_COUNT = 8192
_BLOCKS_LIMIT_COUNT = 65_536
_IDS_LIMIT_COUNT = 1 << 21
# What decides a block is a name and a salt: what is longer is something else.
_EXTRA_LIMIT_BYTES = 64 * 1024
_NIL = Raw(b"\xc0")
_NOTHING = (_NIL, Raw(b"\x90"))
# How maps begin; what else there is begins as an array does, or is neither.
_MAPS = frozenset(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF))


class Garbled(ValueError):
    """A payload that is no batch of events, or more than one may hold."""


class Medium(StrEnum):
    """Where a block lies (metric label): memory the GPU computes on, or any other."""

    GPU = "gpu"
    HOST = "host"


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that follow one another in one sequence are cached now.

    parent: the block before the first, None at the start of a sequence. ids: packed uint32 of all
    the blocks, block_tokens each; none and 0 where blocks are told by their keys alone. readable:
    how many of them, from the first, can be named by ids, `adapter` (None: the model itself) and
    `salt` alone. kind: of attention, "" if not said.
    """

    keys: Sequence[Key]
    parent: Key | None
    ids: bytes
    block_tokens: int
    readable: int
    medium: Medium = Medium.GPU
    adapter: str | None = None
    salt: str | None = None
    group: int = 0
    kind: str = ""


class Removed(msgspec.Struct, frozen=True, gc=False):
    """One physical copy of each of these blocks is gone."""

    keys: Sequence[Key]
    medium: Medium = Medium.GPU
    group: int = 0


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """The whole cache is empty."""


Event = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One message. sent_s: Unix time of the publisher's clock, 0 if not said. rank: of data
    parallelism. unread: events in it that could not be read."""

    sent_s: float
    events: tuple[Event, ...]
    rank: int | None = None
    unread: int = 0


_Keys = Annotated[list[Key], Meta(max_length=_BLOCKS_LIMIT_COUNT)]
_Id = Annotated[int, Meta(ge=0, lt=2**32)]


class _StoredMap(msgspec.Struct, tag="BlockStored"):
    """As it is sent: a map, or the values of one in this order."""

    block_hashes: _Keys
    parent_block_hash: Key | None
    token_ids: Annotated[list[_Id], Meta(max_length=_IDS_LIMIT_COUNT)]
    block_size: int
    lora_id: Raw = _NIL
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Raw = _NIL
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: _Keys
    medium: str | None = None
    group_idx: int | None = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    """As it is sent: a map with a type alone."""


class _StoredRow(_StoredMap, tag="BlockStored", array_like=True):
    """The same as an array."""


class _RemovedRow(_RemovedMap, tag="BlockRemoved", array_like=True):
    """The same as an array."""


class _ClearedRow(_ClearedMap, tag="AllBlocksCleared", array_like=True):
    """The same as an array."""


class _BatchMap(msgspec.Struct):
    ts: float | None
    events: Annotated[list[Raw], Meta(max_length=_EVENTS_LIMIT_COUNT)]
    data_parallel_rank: int | None = None


class _BatchRow(_BatchMap, array_like=True):
    """The same as an array."""


_decode_batch = (
    msgspec.msgpack.Decoder(_BatchRow).decode,
    msgspec.msgpack.Decoder(_BatchMap).decode,
)
_decode_event = (
    msgspec.msgpack.Decoder(_StoredRow | _RemovedRow | _ClearedRow).decode,
    msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap).decode,
)
_decode_extra = msgspec.msgpack.Decoder(
    Annotated[list[Raw], Meta(max_length=_BLOCKS_LIMIT_COUNT)]
).decode
_decode_any = msgspec.msgpack.Decoder().decode


def decode(payload: bytes) -> Batch:
    """One message's payload. Raises Garbled."""
    try:
        batch = _decode_batch[payload[:1] in _MAPS](payload)
    except UNREADABLE:
        raise Garbled("not a batch of events") from None
    read: list[Event] = []
    blocks = 0
    for raw in batch.events:
        event = _event(raw)
        if event is None:
            continue
        blocks += 0 if isinstance(event, Cleared) else len(event.keys)
        if blocks > _BLOCKS_LIMIT_COUNT:
            raise Garbled("more blocks than a message may hold")
        read.append(event)
    unread = len(batch.events) - len(read)
    return Batch(batch.ts or 0.0, tuple(read), batch.data_parallel_rank, unread)


def _event(raw: Raw) -> Event | None:
    """None for what is no event, or none that is known."""
    try:
        event = _decode_event[bytes(memoryview(raw)[:1]) in _MAPS](raw)
    except UNREADABLE:
        return None
    if isinstance(event, _StoredMap):
        return _stored(event)
    if isinstance(event, _RemovedMap):
        return Removed(event.block_hashes, _medium(event.medium), max(event.group_idx or 0, 0))
    return Cleared()


def _stored(event: _StoredMap) -> Event | None:
    keys, ids, size = event.block_hashes, event.token_ids, event.block_size
    medium = _medium(event.medium)
    if medium is Medium.HOST and not ids:
        size = 0
    elif size < 1:
        return None
    if not keys or len(ids) != size * len(keys):
        return None
    first, adapter = event.parent_block_hash is None, event.lora_name
    readable, salt = len(keys), None
    if adapter is None and event.lora_id != _NIL:
        readable = 0
    extra = _extra_of(event.extra_keys)
    if any(of_block not in _NOTHING for of_block in extra):
        readable, salt = _extra(extra[:readable], adapter, first=first)
    return Stored(
        keys,
        event.parent_block_hash,
        array("I", ids).tobytes(),
        size,
        readable,
        medium,
        adapter,
        salt,
        max(event.group_idx or 0, 0),
        event.kv_cache_spec_kind or "",
    )


def _extra_of(raw: Raw) -> list[Raw]:
    try:
        return _decode_extra(raw) if raw != _NIL else []
    except (msgspec.MsgspecError, ValueError):
        return []


def _extra(extra: list[Raw], adapter: str | None, *, first: bool) -> tuple[int, str | None]:
    """Blocks, from the first, whose extra keys say no more than an adapter and a salt; the salt.

    A salt is a string of its own, or the pair ("cache_salt", salt), with the first block only.
    """
    salt: str | None = None
    for position, raw in enumerate(extra):
        of_block = _of_block(raw)
        if not isinstance(of_block, list):
            return position, salt
        words = of_block
        if adapter in words:
            words.remove(adapter)
        if not words:
            continue
        word = words[0]
        if isinstance(word, list) and len(word) == 2 and word[0] == "cache_salt":
            word = word[1]
        if not (first and position == 0 and len(words) == 1 and isinstance(word, str)):
            return position, salt
        salt = word
    return len(extra), salt


def _of_block(raw: Raw) -> Any:
    """The extra keys of one block; an empty list where there are none."""
    if memoryview(raw).nbytes > _EXTRA_LIMIT_BYTES:
        return None
    try:
        return _decode_any(raw) if raw != _NIL else []
    except UNREADABLE:
        return None


def _medium(value: Any) -> Medium:
    return Medium.GPU if value is None or value == "GPU" else Medium.HOST
