"""Event batches as engines spell them, for tests: maps and arrays."""

import struct
from typing import Any

import msgspec
import xxhash

_POSITIONS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
Fields = dict[str, Any]


def stored(keys: list[Any], parent: Any, ids: list[int], size: int, **more: Any) -> Fields:
    """A BlockStored event as a map."""
    return {
        "type": "BlockStored",
        "block_hashes": keys,
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(keys: list[Any], medium: str | None = "GPU") -> Fields:
    return {"type": "BlockRemoved", "block_hashes": keys, "medium": medium}


CLEARED: Fields = {"type": "AllBlocksCleared"}


def as_array(event: Fields) -> list[Any]:
    return [event["type"], *(event.get(name) for name in _POSITIONS[event["type"]])]


def payload(*events: Fields, arrays: bool = False, ts: float = 1.0, rank: int | None = 0) -> bytes:
    """A batch as it goes over the wire."""
    spelled = [as_array(event) for event in events] if arrays else list(events)
    return msgspec.msgpack.encode([ts, spelled, rank])


def engine_keys(ids: list[int], size: int, salt: str = "") -> list[int]:
    """An engine's own chained hashes, unlike ours."""
    keys, before = [], xxhash.xxh64_intdigest(b"engine" + salt.encode())
    for at in range(0, len(ids) // size * size, size):
        block = struct.pack(f"<{size}I", *ids[at : at + size])
        before = xxhash.xxh64_intdigest(block, before)
        keys.append(before)
    return keys
