"""A prompt as token ids, and the names of the rungs that made them.

Invariants:
- Values are frozen.
- Ids travel as packed little-endian uint32, block hashes as packed native uint64: a list of
  100,000 ints holds the GIL for more than a millisecond.
"""

from enum import StrEnum
from typing import Final

import msgspec

HASH_BYTES: Final = 8  # of one block hash


class Rung(StrEnum):
    """Where a request's ids came from, cheapest for the loop first (metric label)."""

    TOKEN_INPUT = "token-input"
    CACHE = "cache"
    SHORT = "short"
    THREADS = "threads"
    PROCESSES = "processes"
    LOCAL = "local"
    REPLICA = "replica"
    BAIL = "bail"


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt as ids.

    sequences: one packed uint32 buffer per prompt of the request (chat has one); empty where a
    chat's ids were counted and hashed, and not kept, or are in parts.
    blocks: packed uint64, chained hashes of the first sequence's full blocks.
    block_tokens: tokens per block in `blocks`. tokens: in all sequences together.
    parts: a chat's ids as parts that it shares with earlier turns (tokens/caches/listed_ids.py), or
    none.
    """

    sequences: tuple[bytes, ...]
    blocks: bytes
    block_tokens: int
    tokens: int
    parts: tuple[bytes, ...] = ()

    @property
    def ids(self) -> bytes | None:
        """The first sequence; None where it was not kept."""
        return self.sequences[0] if self.sequences else b"".join(self.parts) or None
