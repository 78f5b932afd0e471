"""The block cache of one replica: which prompt blocks are there, and which may go.

Invariants:
- Blocks in all states together never exceed the capacity.
- A block is visible to others only once it has been computed (`publish`).
- Blocks in use are never evicted; idle ones go least recently used first and, of one sequence,
  the last block first, so that what is left is always a prefix.
- Equal blocks are kept once. (vLLM keeps a second copy of a block computed twice at the same
  time; that copy holds memory but no knowledge.)
"""

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

Blocks = tuple[bytes, ...]


def chain(ids: bytes, block_tokens: int, salt: str = "", parent: bytes = b"") -> Blocks:
    """Chained 8-byte hashes of the full blocks of packed uint32 `ids`.

    parent: hash of the block before the first one; without it the salt starts the chain.
    """
    digest = xxhash.xxh3_64_digest
    hashed = parent or (digest(salt.encode("utf-8", "surrogatepass")) if salt else b"")
    width = block_tokens * 4
    blocks = []
    for end in range(width, len(ids) + 1, width):
        hashed = digest(hashed + ids[end - width : end])
        blocks.append(hashed)
    return tuple(blocks)


class PrefixCache:
    """capacity_blocks None: nothing is ever evicted."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self.capacity_blocks = capacity_blocks
        self.private_blocks = 0
        self.evicted_blocks = 0
        self._held: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks in all states."""
        return len(self._held) + len(self._idle) + self.private_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold (vLLM's kv_cache_usage)."""
        return len(self._held) + self.private_blocks

    def match(self, blocks: Sequence[bytes], limit: int) -> int:
        """How many leading blocks, at most `limit`, are visible."""
        held, idle = self._held, self._idle
        for count, block in enumerate(blocks[:limit]):
            if block not in held and block not in idle:
                return count
        return min(limit, len(blocks))

    def take(self, blocks: Sequence[bytes], private: int) -> bool:
        """Hold the visible `blocks` and `private` new ones; False, and no change, if the cache
        cannot make room."""
        if self.capacity_blocks is not None:
            idle_wanted = sum(block in self._idle for block in blocks)
            spare = self.capacity_blocks - self.used_blocks - idle_wanted
            if private > spare:
                return False
        for block in blocks:
            self._hold(block)
        self.private_blocks += private
        self._evict()
        return True

    def publish(self, blocks: Sequence[bytes]) -> None:
        """Private blocks have been computed: the same number becomes visible, still held."""
        self.private_blocks -= len(blocks)
        for block in blocks:
            self._hold(block)

    def release(self, blocks: Sequence[bytes], private: int) -> None:
        """A sequence ends: visible blocks it held, in order, and private ones."""
        self.private_blocks -= private
        for block in reversed(blocks):
            count = self._held[block] - 1
            if count:
                self._held[block] = count
            else:
                del self._held[block]
                self._idle[block] = None

    def clear(self) -> bool:
        """Forget everything idle; False, and no change, while blocks are in use (as vLLM)."""
        if self.used_blocks:
            return False
        self._idle.clear()
        return True

    def _hold(self, block: bytes) -> None:
        count = self._held.get(block)
        if count is None:
            self._idle.pop(block, None)
            count = 0
        self._held[block] = count + 1

    def _evict(self) -> None:
        if self.capacity_blocks is None:
            return
        while len(self) > self.capacity_blocks:
            self._idle.popitem(last=False)
            self.evicted_blocks += 1
