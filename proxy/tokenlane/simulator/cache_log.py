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

import msgspec

Spelling = Literal["maps", "arrays"]


class BlockStored(msgspec.Struct, tag=True, tag_field="type"):
    """Blocks that are there now. medium: the memory they are in."""

    block_hashes: list[int]
    parent_block_hash: int | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None
    extra_keys: list[Any] | None = None


class BlockRemoved(msgspec.Struct, tag=True, tag_field="type"):
    """Blocks that were evicted."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, tag=True, tag_field="type"):
    """The cache was emptied."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def spelled(events: Sequence[Event], spelling: Spelling) -> list[Any]:
    """Return the events as they are written: maps, or arrays that begin with the type."""
    if spelling == "maps":
        return list(events)
    return [[type(one).__name__, *msgspec.structs.astuple(one)] for one in events]


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
            BlockStored(
                [_number(block) for block in blocks[first:]],
                _number(blocks[first - 1]) if first else None,
                array("I", ids[first * width : len(blocks) * width]).tolist(),
                self._block_tokens,
                lora_id=self._numbers.setdefault(adapter, len(self._numbers)) or None,
                lora_name=adapter or None,
                extra_keys=extra,
            )
        )

    def offloaded(self, blocks: Sequence[bytes]) -> None:
        """Note that blocks have a copy in the CPU's memory now."""
        self._events += [BlockStored([_number(block)], medium="CPU") for block in blocks]

    def removed(self, block: bytes, medium: str = "GPU") -> None:
        """Note that a block was evicted."""
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved) and last.medium == medium:
            last.block_hashes.append(_number(block))
        else:
            self._events.append(BlockRemoved([_number(block)], medium))

    def cleared(self) -> None:
        """Note that the cache was emptied."""
        self._events.append(AllBlocksCleared())

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


def _number(block: bytes) -> int:
    return int.from_bytes(block, "big")
