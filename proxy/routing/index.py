"""PrefixIndex: which prefixes each replica was given, in-flight prompts included.

Invariants:
- A prompt is inserted when it is routed, not when it is answered: the next turn or a sibling
  that arrives in between must find it (worth up to 25 points of hits on public traces).
- Nothing expires by time. Old prefixes leave when newer ones fill the replica's capacity, as in
  the replica itself.
- A replica that restarts loses its entries at once (`forget`).

The approximation. Two generations per replica, each at most `capacity` blocks: a prompt that
does not fit into the young one makes it the old one, and the old one before it is dropped. So
- the last `capacity` distinct blocks touched are always held (a superset of an exact LRU);
- never more than 2 x `capacity` blocks are held.
An index too large costs under one point of hits on public traces, one too small 10 to 18, which
is why the error lies on this side. Of a prompt longer than the capacity the head is held: a
replica frees a sequence from its tail.
"""

from collections.abc import Iterable

from proxy.routing.generation import RUN_BLOCKS, Generation


class _Replica:
    __slots__ = ("capacity_blocks", "old", "young")

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.young = Generation()
        self.old = Generation()


class PrefixIndex:
    """Longest-prefix lookups over all replicas of a worker, bounded per replica.

    `blocks` is always packed uint64 as proxy.routing.blocks makes it (chained hashes). All
    methods run on the loop: a lookup is logarithmic in the prompt, an insertion costs the
    blocks that are new.
    """

    def __init__(self, limit_blocks: int) -> None:
        """limit_blocks: capacity of a replica whose cache size is not known, and the most that
        is kept for any (>= 1)."""
        if limit_blocks < 1:
            raise ValueError("limit_blocks must be at least 1")
        self._limit_blocks = limit_blocks
        self._replicas: dict[int, _Replica] = {}

    def _replica(self, slot: int) -> _Replica:
        replica = self._replicas.get(slot)
        if replica is None:
            replica = self._replicas[slot] = _Replica(self._limit_blocks)
        return replica

    def set_capacity(self, slot: int, cache_blocks: int | None) -> None:
        """What the replica's cache holds, in blocks of this index (None: unknown)."""
        capacity = min(cache_blocks or self._limit_blocks, self._limit_blocks)
        self._replica(slot).capacity_blocks = capacity

    def insert(self, slot: int, blocks: bytes) -> None:
        """The replica was sent a prompt with these blocks; they are its most recent now."""
        replica = self._replica(slot)
        if len(blocks) > 8 * replica.capacity_blocks:
            blocks = blocks[: 8 * replica.capacity_blocks]
        hashes = memoryview(blocks).cast("Q")
        young = replica.young
        if not hashes or (len(hashes) <= RUN_BLOCKS and hashes[-1] in young.roots):
            return
        matched = young.match(blocks, hashes)
        if young.blocks + len(hashes) - matched > replica.capacity_blocks:
            replica.old = young
            replica.young = young = Generation()
            matched = 0
        young.insert(blocks, hashes, matched)

    def match(self, slot: int, blocks: bytes) -> int:
        """Leading blocks of `blocks` that the replica should hold."""
        return self.match_all((slot,), blocks)[0]

    def match_all(self, slots: Iterable[int], blocks: bytes) -> list[int]:
        """`match` for several replicas at once, in the order of `slots`."""
        hashes = memoryview(blocks).cast("Q")
        count = len(hashes)
        replicas = self._replicas
        found = []
        if not count:
            return [0 for _ in slots]
        first = hashes[0]
        # A prefix-closed set that has the last hash has all; long prompts are not in `roots` whole.
        last = hashes[-1] if count <= RUN_BLOCKS else None
        for slot in slots:
            replica = replicas.get(slot)
            if replica is None:
                found.append(0)
                continue
            roots = replica.young.roots
            if last in roots:
                found.append(count)
                continue
            matched = replica.young.match(blocks, hashes) if first in roots else 0
            if matched < count and first in replica.old.roots:
                # Both sets are prefix-closed, so the union's longest match is one of theirs.
                matched = max(matched, replica.old.match(blocks, hashes))
            found.append(matched)
        return found

    def forget(self, slot: int) -> None:
        """The replica's cache is empty (it restarted, or cleared it). Its capacity stays."""
        replica = self._replica(slot)
        replica.young = Generation()
        replica.old = Generation()

    def remove(self, slot: int) -> None:
        """The replica is gone for good."""
        self._replicas.pop(slot, None)

    def held_blocks(self, slot: int) -> int:
        """Blocks held for one replica; those in both generations count twice."""
        replica = self._replicas.get(slot)
        return replica.young.blocks + replica.old.blocks if replica else 0

    @property
    def size_bytes(self) -> int:
        """Memory of all replicas' entries, estimated."""
        return sum(r.young.size_bytes + r.old.size_bytes for r in self._replicas.values())

    def __len__(self) -> int:
        return sum(map(self.held_blocks, self._replicas))

    def __repr__(self) -> str:
        each = ", ".join(
            f"{slot}: {self.held_blocks(slot)}/{replica.capacity_blocks}"
            for slot, replica in sorted(self._replicas.items())
        )
        return f"<PrefixIndex {{{each}}} blocks>"
