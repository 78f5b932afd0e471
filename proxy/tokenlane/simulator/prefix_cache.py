"""The prefix cache of one vLLM replica: which prompt blocks are there, and which may go.

Shared by the simulated server and the replays of traces. A block is whatever names a whole prefix:
a hash of the simulator's, or a number of the gateway's index.

Invariants:
- Blocks in all states together never exceed the capacity.
- A block is visible to others only once it has been computed (`publish`).
- Blocks in use are never evicted; idle ones go least recently used first and, of one sequence,
  the last block first. Whoever holds a block holds those before it, so what is left of a
  sequence is always a prefix of it.
- Equal blocks are kept once. (vLLM keeps a second copy of a block computed twice at the same
  time; that copy holds memory but no knowledge.)
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import xxhash

Block = TypeVar("Block", bound=Hashable)
Blocks = tuple[bytes, ...]


def chain(ids: bytes, block_tokens: int, salt: str = "", parent: bytes = b"") -> Blocks:
    """Return chained 8-byte hashes of the full blocks of packed uint32 `ids`.

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


def matchable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """Return how many blocks of a prompt may be found: its last token is always computed, as in
    vLLM."""
    return (prompt_tokens - 1) // block_tokens


class EndlessBlockCache:
    """Nothing is ever evicted, so nothing is counted per block: a prompt of 100,000 tokens costs
    the loop a set update. used_blocks: those that running sequences hold (vLLM's kv_cache_usage);
    a block that two of them hold counts twice."""

    def __init__(self) -> None:
        self.evicted_blocks = 0
        self.used_blocks = 0
        self._private_blocks = 0
        self._visible: set[bytes] = set()

    def __len__(self) -> int:
        """Return blocks in all states."""
        return len(self._visible) + self._private_blocks

    def match(self, blocks: Sequence[bytes], limit: int) -> int:
        """Return how many leading blocks, at most `limit`, are visible."""
        return _longest_prefix(blocks, limit, self._visible.__contains__)

    def take(self, blocks: Sequence[bytes], private: int) -> bool:
        """Hold the visible `blocks` and `private` new ones; False, and no change, if the cache
        cannot make room."""
        self.used_blocks += len(blocks) + private
        self._private_blocks += private
        return True

    def publish(self, blocks: Sequence[bytes]) -> int:
        """Publish private blocks that have been computed: the same number becomes visible, still
        held. Returns how many, the last of `blocks`, were not visible before."""
        self._private_blocks -= len(blocks)
        before = len(self._visible)
        self._visible.update(blocks)
        return len(self._visible) - before

    def release(self, blocks: Sequence[bytes], private: int) -> None:
        """Release the blocks of a sequence that ended: visible ones, in order, and private ones."""
        self.used_blocks -= len(blocks) + private
        self._private_blocks -= private

    def clear(self) -> bool:
        """Forget everything idle; False, and no change, while blocks are in use (as vLLM)."""
        if self.used_blocks:
            return False
        self._visible.clear()
        return True


class BoundedBlockCache(Generic[Block]):
    """As EndlessBlockCache, of so many blocks: LRU over the idle ones, counts of holders for the
    others. on_evicted: told of each block that made room."""

    def __init__(
        self, capacity_blocks: int, on_evicted: Callable[[Block], None] | None = None
    ) -> None:
        self._on_evicted = on_evicted
        self.capacity_blocks = capacity_blocks
        self.evicted_blocks = 0
        self._private_blocks = 0
        self._held: dict[Block, int] = {}
        self._idle: OrderedDict[Block, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held) + len(self._idle) + self._private_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold (vLLM's kv_cache_usage)."""
        return len(self._held) + self._private_blocks

    def match(self, blocks: Sequence[Block], limit: int) -> int:
        held, idle = self._held, self._idle
        return _longest_prefix(blocks, limit, lambda block: block in held or block in idle)

    def take(self, blocks: Sequence[Block], private: int) -> bool:
        idle_wanted = sum(block in self._idle for block in blocks)
        if private > self.capacity_blocks - self.used_blocks - idle_wanted:
            return False
        self._hold(blocks)
        self._private_blocks += private
        while len(self) > self.capacity_blocks:
            block, _ = self._idle.popitem(last=False)
            self.evicted_blocks += 1
            if self._on_evicted is not None:
                self._on_evicted(block)
        return True

    def publish(self, blocks: Sequence[Block]) -> int:
        self._private_blocks -= len(blocks)
        return self._hold(blocks)

    def release(self, blocks: Sequence[Block], private: int) -> None:
        self._private_blocks -= private
        held, idle = self._held, self._idle
        for block in reversed(blocks):
            count = held[block] - 1
            if count:
                held[block] = count
            else:
                del held[block]
                idle[block] = None

    def clear(self) -> bool:
        if self.used_blocks:
            return False
        self._idle.clear()
        return True

    def insert(self, blocks: Sequence[Block]) -> None:
        """Publish the blocks of a sequence that ends at once. Of one longer than the cache the
        head stays."""
        blocks = blocks[: self.capacity_blocks]
        matched = self.match(blocks, len(blocks))
        self.take(blocks[:matched], len(blocks) - matched)
        self.publish(blocks[matched:])
        self.release(blocks, 0)

    def _hold(self, blocks: Sequence[Block]) -> int:
        """Hold these blocks and return how many of them are new."""
        held, idle = self._held, self._idle
        before = len(held) + len(idle)
        for block in blocks:
            count = held.get(block)
            if count is None:
                idle.pop(block, None)
                count = 0
            held[block] = count + 1
        return len(held) + len(idle) - before


def _longest_prefix(blocks: Sequence[Block], limit: int, visible: Callable[[Block], bool]) -> int:
    """Bisect the visible prefix: of a sequence, nothing behind it is visible."""
    low, high = 0, max(0, min(limit, len(blocks)))
    while low < high:
        middle = (low + high) // 2
        if visible(blocks[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def prefix_cache(
    capacity_blocks: int | None, on_evicted: Callable[[bytes], None] | None = None
) -> EndlessBlockCache | BoundedBlockCache[bytes]:
    """Return a cache of so many blocks; None: one that never evicts."""
    if capacity_blocks is None:
        return EndlessBlockCache()
    return BoundedBlockCache(capacity_blocks, on_evicted)
