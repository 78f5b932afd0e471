"""Truth: what each replica holds by its own account (KV events), as sets of our block hashes.

Invariants:
- Changes come from the control plane in order, and nothing here guesses: what is stored is in, what
  is removed is out, whatever the gateway has routed (that is tokenlane.routing.pending).
- An engine frees a sequence from its tail, so what is held of a prompt is a prefix of it, and a
  look-up is a binary search. Right after a change in the middle it may find less.
- A rank's cache is its own; a replica holds what its best rank holds.
"""

from tokenlane.fleet_state import CacheChange, Standing
from tokenlane.routing.hashset import HashSet


class Rank:
    """One data-parallel rank's cache: what is on the GPU, and what in other memory."""

    __slots__ = ("gpu", "host", "standing")

    def __init__(self) -> None:
        self.gpu = HashSet()
        self.host = HashSet()
        self.standing = Standing.NONE


class _Replica:
    __slots__ = ("block_tokens", "ranks", "standing")

    def __init__(self) -> None:
        self.block_tokens = 0
        self.standing = Standing.NONE
        self.ranks: list[Rank] = []


class Truth:
    """What replicas hold, by slot. host_worth: of a block that lies in memory other than the GPU's,
    0..1, from the next look on. replicas: those that have said anything; empty without KV
    events."""

    def __init__(self, host_block_worth: float) -> None:
        self.host_worth = host_block_worth
        self.replicas: dict[int, _Replica] = {}

    def apply(self, change: CacheChange) -> None:
        """What the control plane has learned. Takes about 1 µs a hash."""
        replica = self.replicas.get(change.slot)
        if replica is None:
            replica = self.replicas[change.slot] = _Replica()
        if replica.block_tokens != change.block_tokens or len(replica.ranks) != change.ranks:
            replica.block_tokens = change.block_tokens
            replica.ranks = [Rank() for _ in range(change.ranks)]
        rank = replica.ranks[change.rank]
        if change.cleared:
            rank.gpu, rank.host = HashSet(), HashSet()
        rank.standing = change.standing
        replica.standing = _least([one.standing for one in replica.ranks])
        rank.gpu.discard_all(change.removed)
        rank.host.discard_all(change.host_removed)
        rank.gpu.add_all(change.stored)
        rank.host.add_all(change.host_stored)

    def standing(self, slot: int, block_tokens: int) -> Standing:
        """How far the replica's account may be believed for hashes of such blocks."""
        replica = self.replicas.get(slot)
        if replica is None or replica.block_tokens != block_tokens:
            return Standing.NONE
        return replica.standing

    def match(
        self, slot: int, blocks: bytes, hashes: memoryview, pending: int, guess: int = 0
    ) -> int:
        """What leading blocks the replica holds are worth, in blocks. blocks, hashes: the
        prompt's, packed and as a "Q" view; pending: blocks on their way to it; guess: how many it
        may hold."""
        best = pending
        for rank in self._ranks(slot):
            best = max(best, self._worth(rank, blocks, hashes, pending, guess))
        return best

    def by_rank(self, slot: int, blocks: bytes, hashes: memoryview) -> list[int]:
        """What leading blocks each rank holds are worth, in blocks; empty where the replica has
        one rank or no truth."""
        ranks = self._ranks(slot)
        if len(ranks) < 2:
            return []
        return [self._worth(rank, blocks, hashes, 0, 0) for rank in ranks]

    def _worth(
        self, rank: Rank, blocks: bytes, hashes: memoryview, pending: int, guess: int
    ) -> int:
        matched = max(rank.gpu.first_unknown(blocks, hashes, 0, guess), pending)
        beyond = rank.host.first_unknown(blocks, hashes, matched) - matched
        return matched + int(beyond * self.host_worth)

    def remove(self, slot: int) -> None:
        """The replica is gone for good."""
        self.replicas.pop(slot, None)

    def held_blocks(self, slot: int) -> int:
        """Blocks held on the replica's GPUs, over its ranks."""
        return sum(rank.gpu.count for rank in self._ranks(slot))

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, estimated."""
        return sum(
            rank.gpu.size_bytes + rank.host.size_bytes
            for replica in self.replicas.values()
            for rank in replica.ranks
        )

    def _ranks(self, slot: int) -> list[Rank]:
        replica = self.replicas.get(slot)
        return replica.ranks if replica is not None else []

    def __repr__(self) -> str:
        held = {slot: self.held_blocks(slot) for slot in sorted(self.replicas)}
        return f"<Truth {held} blocks>"


def _least(standings: list[Standing]) -> Standing:
    """A replica is known as well as the rank that is known least."""
    if Standing.NONE in standings:
        return Standing.NONE
    return Standing.PARTIAL if Standing.PARTIAL in standings else Standing.COMPLETE
