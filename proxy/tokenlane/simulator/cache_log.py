"""What happened in a replica's block cache, as vLLM's KV events have it. Pure.

Invariants:
- Events are in the order in which things happened; `take` empties the log.
- A block is stored with the token ids that make it and the block before it; its hash here is the
  simulator's own 8 bytes, read as a number.
- The salt of a request is told with the first block of its sequence alone, as vLLM does.
- A block that is copied to the CPU's memory is told by its hash alone, one an event, as vLLM's
  offloading connector does.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Literal

Event = dict[str, Any]
Spelling = Literal["maps", "arrays"]

# The order of the fields in the spelling as arrays, behind the type.
_FIELDS = {
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


def spelled(events: Sequence[Event], spelling: Spelling) -> list[Any]:
    """Return the events as they are written: maps, or arrays that begin with the type."""
    if spelling == "maps":
        return list(events)
    return [[one["type"], *(one[name] for name in _FIELDS[one["type"]])] for one in events]


class CacheLog:
    """Of one engine. block_tokens: tokens per block."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._events: list[Event] = []
        self._numbers = {"": 0}

    def stored(
        self, blocks: Sequence[bytes], first: int, ids: bytes, salt: str, adapter: str = ""
    ) -> None:
        """Blocks from index `first` on are visible now. blocks: of the sequence from its start,
        made of the packed `ids`. adapter: the LoRA adapter that computed them, if one did."""
        width = self._block_tokens * 4
        extra: list[Any] = [[adapter] if adapter else None for _ in blocks[first:]]
        if salt and not first:
            extra[0] = [*(extra[0] or ()), salt]
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": [_number(block) for block in blocks[first:]],
                "parent_block_hash": _number(blocks[first - 1]) if first else None,
                "token_ids": array("I", ids[first * width : len(blocks) * width]).tolist(),
                "block_size": self._block_tokens,
                "lora_id": self._numbers.setdefault(adapter, len(self._numbers)) or None,
                "medium": "GPU",
                "lora_name": adapter or None,
                "extra_keys": extra,
            }
        )

    def offloaded(self, blocks: Sequence[bytes]) -> None:
        """Note that blocks have a copy in the CPU's memory now."""
        self._events += [
            {
                "type": "BlockStored",
                "block_hashes": [_number(block)],
                "parent_block_hash": None,
                "token_ids": [],
                "block_size": 0,
                "lora_id": None,
                "medium": "CPU",
                "lora_name": None,
                "extra_keys": None,
            }
            for block in blocks
        ]

    def removed(self, block: bytes, medium: str = "GPU") -> None:
        """Note that a block was evicted."""
        last = self._events[-1] if self._events else {}
        if last.get("type") == "BlockRemoved" and last["medium"] == medium:
            last["block_hashes"].append(_number(block))
            return
        self._events.append(
            {"type": "BlockRemoved", "block_hashes": [_number(block)], "medium": medium}
        )

    def cleared(self) -> None:
        """Note that the cache was emptied."""
        self._events.append({"type": "AllBlocksCleared"})

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def _number(block: bytes) -> int:
    return int.from_bytes(block, "big")
