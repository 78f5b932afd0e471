"""A replica's KV cache: blocks, least recently used first out.

Invariants:
- Never more than `limit_blocks` are held.
- Of a prompt, the tail is older than the head, as in vLLM, which frees a sequence from its tail: so
  the set stays prefix-closed, and a match may stop at the first block that is missing.
"""


class BlockCache:
    """An exact LRU of chained block hashes."""

    def __init__(self, limit_blocks: int) -> None:
        self._limit_blocks = limit_blocks
        # A dict keeps the order of insertion: the oldest is first.
        self._blocks: dict[int, None] = {}

    def match(self, blocks: bytes) -> int:
        """Leading blocks that are held. Touches nothing."""
        held = self._blocks
        found = 0
        for one in memoryview(blocks).cast("Q"):
            if one not in held:
                break
            found += 1
        return found

    def insert(self, blocks: bytes) -> None:
        """A prompt was computed: its blocks are the most recent now. Of a prompt longer than the
        cache the head stays."""
        held = self._blocks
        hashes = memoryview(blocks).cast("Q")[: self._limit_blocks]
        for one in reversed(hashes):
            held.pop(one, None)
            held[one] = None
        excess = len(held) - self._limit_blocks
        if excess > 0:
            oldest = iter(held)
            for one in [next(oldest) for _ in range(excess)]:
                del held[one]

    def clear(self) -> None:
        """All is lost: the process restarted."""
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)
