"""Truth: what each replica holds by its own account (KV events), as sets of our block hashes.

Invariants:
- Changes come from the control plane in order, and nothing here guesses: what is stored is in, what
  is removed is out, whatever the gateway has routed (that is proxy.routing.pending).
- An engine frees a sequence from its tail, so what is held of a prompt is a prefix of it, and a
  look-up is a binary search. Right after a change in the middle it may find less.
- The sets are cut into SHARDS: growing or freeing one is no stall.
- A rank's cache is its own; a replica holds what its best rank holds.
"""

from proxy.model import CacheChange, Standing

SHARDS = 64
# A set's entry and its int, measured on CPython 3.11 (x86-64).
ENTRY_BYTES = 85


def _shards() -> list[set[int]]:
    return [set() for _ in range(SHARDS)]


def _first_unknown(shards: list[set[int]], hashes: memoryview, low: int) -> int:
    """The first block from `low` on that is in no shard."""
    high = len(hashes)
    if low >= high or hashes[low] not in shards[hashes[low] % SHARDS]:
        return low
    low += 1
    while low < high:
        middle = (low + high) // 2
        one = hashes[middle]
        if one in shards[one % SHARDS]:
            low = middle + 1
        else:
            high = middle
    return low


def _add(shards: list[set[int]], packed: bytes) -> None:
    for one in memoryview(packed).cast("Q"):
        shards[one % SHARDS].add(one)


def _discard(shards: list[set[int]], packed: bytes) -> None:
    for one in memoryview(packed).cast("Q"):
        shards[one % SHARDS].discard(one)


class Rank:
    """One data-parallel rank's cache."""

    __slots__ = ("gpu", "host", "standing")

    def __init__(self) -> None:
        self.gpu = _shards()
        self.host = _shards()
        self.standing = Standing.NONE

    def match(self, hashes: memoryview) -> int:
        """Leading blocks on the GPU."""
        return _first_unknown(self.gpu, hashes, 0)

    def match_host(self, hashes: memoryview, matched: int) -> int:
        """Leading blocks on the GPU or, behind the `matched` ones, in other memory."""
        return _first_unknown(self.host, hashes, matched)


class _Replica:
    __slots__ = ("block_tokens", "ranks", "standing")

    def __init__(self) -> None:
        self.block_tokens = 0
        self.standing = Standing.NONE
        self.ranks: list[Rank] = []


class Truth:
    """By slot. host_block_worth: of a block that lies in memory other than the GPU's, 0..1."""

    def __init__(self, host_block_worth: float) -> None:
        self._host_worth = host_block_worth
        self._replicas: dict[int, _Replica] = {}
        self._waste: list[set[int]] = []

    def apply(self, change: CacheChange) -> None:
        """What the control plane has learned. Takes about 0.1 µs a hash."""
        replica = self._replicas.get(change.slot)
        if replica is None:
            replica = self._replicas[change.slot] = _Replica()
        if replica.block_tokens != change.block_tokens or len(replica.ranks) != change.ranks:
            for rank in replica.ranks:
                self._drop(rank)
            replica.block_tokens = change.block_tokens
            replica.ranks = [Rank() for _ in range(change.ranks)]
        rank = replica.ranks[change.rank]
        if change.cleared:
            self._drop(rank)
        rank.standing = change.standing
        replica.standing = _least([one.standing for one in replica.ranks])
        _discard(rank.gpu, change.removed)
        _discard(rank.host, change.host_removed)
        _add(rank.gpu, change.stored)
        _add(rank.host, change.host_stored)
        self.free()

    def known(self, slot: int) -> bool:
        """Whether the replica has said anything."""
        return slot in self._replicas

    def __bool__(self) -> bool:
        return bool(self._replicas)

    def standing(self, slot: int, block_tokens: int) -> Standing:
        """How far the replica's account may be believed for hashes of such blocks."""
        replica = self._replicas.get(slot)
        if replica is None or replica.block_tokens != block_tokens:
            return Standing.NONE
        return replica.standing

    def match(self, slot: int, hashes: memoryview, pending: int) -> int:
        """What leading blocks the replica holds are worth, in blocks. hashes: "Q" view of the
        prompt's; pending: blocks on their way to it."""
        best = pending
        for rank in self._ranks(slot):
            matched = max(rank.match(hashes), pending)
            beyond = rank.match_host(hashes, matched) - matched
            best = max(best, matched + int(beyond * self._host_worth))
        return best

    def by_rank(self, slot: int, hashes: memoryview) -> list[int]:
        """Leading blocks on each rank's GPU; empty where the replica has one rank or no truth."""
        ranks = self._ranks(slot)
        if len(ranks) < 2:
            return []
        return [rank.match(hashes) for rank in ranks]

    def remove(self, slot: int) -> None:
        """The replica is gone for good."""
        replica = self._replicas.pop(slot, None)
        if replica is not None:
            for rank in replica.ranks:
                self._drop(rank)

    def held_blocks(self, slot: int) -> int:
        """Blocks held on the replica's GPUs, over its ranks."""
        return sum(len(shard) for rank in self._ranks(slot) for shard in rank.gpu)

    def free(self) -> None:
        """Frees a little of what was dropped; called often."""
        if self._waste:
            self._waste.pop()

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, estimated."""
        blocks = sum(len(shard) for shard in self._waste)
        for replica in self._replicas.values():
            for rank in replica.ranks:
                blocks += sum(map(len, rank.gpu)) + sum(map(len, rank.host))
        return ENTRY_BYTES * blocks

    def _ranks(self, slot: int) -> list[Rank]:
        replica = self._replicas.get(slot)
        return replica.ranks if replica is not None else []

    def _drop(self, rank: Rank) -> None:
        self._waste += [shard for shard in (*rank.gpu, *rank.host) if shard]
        rank.gpu = _shards()
        rank.host = _shards()

    def __repr__(self) -> str:
        held = {slot: self.held_blocks(slot) for slot in sorted(self._replicas)}
        return f"<Truth {held} blocks>"


def _least(standings: list[Standing]) -> Standing:
    """A replica is known as well as the rank that is known least."""
    if Standing.NONE in standings:
        return Standing.NONE
    return Standing.PARTIAL if Standing.PARTIAL in standings else Standing.COMPLETE
