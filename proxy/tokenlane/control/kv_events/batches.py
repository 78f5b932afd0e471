"""KV event batches as vLLM publishes them (msgpack), and as other engines and versions do.

Invariants:
- Events come as maps with a `type`, or as arrays that begin with it; fields not known here are
  ignored, fields left out have their default.
- Nothing a publisher sends raises anything but Garbled, and that for a whole payload only: an
  event that cannot be read is counted and left out.
- A block is readable where our own hash of it can be known from its token ids, its model and its
  salt. Blocks of prompts with images, of adapters without a name and the like are not.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

Key = int | bytes
"""What an engine calls a block: 64 bits of its hash, or all 32 bytes."""

# Positions of the fields in the spelling as arrays, behind the type.
_STORED = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED = ("block_hashes", "medium", "group_idx")


class Garbled(ValueError):
    """A payload that is no batch of events."""


class Medium(StrEnum):
    """Where a block lies (metric label): memory the GPU computes on, or any other."""

    GPU = "gpu"
    HOST = "host"


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that follow one another in one sequence are cached now.

    parent: the block before the first, None at the start of a sequence. ids: packed uint32 of all
    the blocks, block_tokens each. readable: how many of them, from the first, can be named by ids,
    `adapter` (None: the model itself) and `salt` alone. kind: of attention, "" if not said.
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


_decode = msgspec.msgpack.Decoder().decode


def decode(payload: bytes) -> Batch:
    """One message's payload. Raises Garbled."""
    try:
        value = _decode(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        raise Garbled("not msgpack") from None
    if isinstance(value, dict):
        value = [value.get("ts"), value.get("events"), value.get("data_parallel_rank")]
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], list):
        raise Garbled("not a batch of events")
    events = [_event(one) for one in value[1]]
    sent_s = value[0] if isinstance(value[0], (int, float)) else 0.0
    rank = value[2] if len(value) > 2 and isinstance(value[2], int) else None
    read = tuple(event for event in events if event is not None)
    return Batch(float(sent_s), read, rank, len(events) - len(read))


def _event(value: Any) -> Event | None:
    """None for what is no event, or none that is known."""
    if isinstance(value, list) and value:
        kind, rest = value[0], value[1:]
        names = _STORED if kind == "BlockStored" else _REMOVED
        fields = dict(zip(names, rest))
    elif isinstance(value, dict):
        kind, fields = value.get("type"), value
    else:
        return None
    if kind == "AllBlocksCleared":
        return Cleared()
    keys = fields.get("block_hashes")
    if not isinstance(keys, list) or not all(isinstance(key, (int, bytes)) for key in keys):
        return None
    medium, group = _medium(fields.get("medium")), _count(fields.get("group_idx"))
    if kind == "BlockRemoved":
        return Removed(keys, medium, group)
    if kind == "BlockStored":
        return _stored(keys, fields, medium, group)
    return None


def _stored(keys: list[Key], fields: dict[str, Any], medium: Medium, group: int) -> Event | None:
    parent, ids = fields.get("parent_block_hash"), fields.get("token_ids")
    size = _count(fields.get("block_size"))
    if parent is not None and not isinstance(parent, (int, bytes)):
        return None
    if not keys or size < 1 or not isinstance(ids, list) or len(ids) != size * len(keys):
        return None
    try:
        packed = array("I", ids).tobytes()
    except (TypeError, OverflowError):
        return None
    adapter = fields.get("lora_name")
    if not isinstance(adapter, str):
        adapter = None
    readable, salt = len(keys), None
    if adapter is None and fields.get("lora_id") is not None:
        readable = 0
    extra = fields.get("extra_keys")
    if isinstance(extra, list) and any(extra):
        readable, salt = _extra(extra[:readable], adapter, first=parent is None)
        readable = min(readable, len(keys))
    kind = fields.get("kv_cache_spec_kind")
    return Stored(
        keys, parent, packed, size, readable, medium, adapter, salt, group,
        kind if isinstance(kind, str) else "",
    )  # fmt: skip


def _extra(extra: list[Any], adapter: str | None, *, first: bool) -> tuple[int, str | None]:
    """Blocks, from the first, whose extra keys say no more than an adapter and a salt; the salt.

    A salt is a string of its own, or the pair ("cache_salt", salt), with the first block only.
    """
    salt: str | None = None
    for position, of_block in enumerate(extra):
        words = list(of_block) if isinstance(of_block, list) else []
        if of_block is not None and not isinstance(of_block, list):
            return position, salt
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


def _medium(value: Any) -> Medium:
    return Medium.GPU if value is None or value == "GPU" else Medium.HOST


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
