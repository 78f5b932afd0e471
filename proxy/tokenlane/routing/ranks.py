"""Which data-parallel rank of a replica: each has a cache of its own, and its events say which.

A replica of several ranks spreads its requests over them without a look at their caches. Where the
events of all ranks are known, the gateway picks the rank (`X-data-parallel-rank`) by the rule by
which it picks replicas: own uncached tokens + alpha x queued uncached tokens.

Invariants:
- Only this worker's requests count as queued: other workers' ranks are not told.
- A rank is picked for the attempt that follows, and counted by its lease.
"""

from collections.abc import Sequence
from typing import Final

from tokenlane.routing.decision import Query
from tokenlane.routing.lease import Lease, LocalBoard
from tokenlane.routing.pending import Pending

RANK_LIMIT: Final = 64


def _key(slot: int, rank: int) -> int:
    return slot * RANK_LIMIT + rank


class Ranks:
    """alpha: as the affinity policy's, from the next choice on."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha
        self._board = LocalBoard()
        self._pending = Pending()
        self._chosen: dict[int, int] = {}
        self._choices = 0

    def choose(self, slot: int, query: Query, held: Sequence[int]) -> int:
        """The rank with the least to compute before this prompt's first token. held: what leading
        blocks on each rank are worth."""
        hashes = memoryview(query.blocks).cast("Q")
        keys = [_key(slot, rank) for rank in range(len(held))]
        requests, queued_tokens = self._board.columns(keys)
        best, best_price = 0, (0.0, 0, 0)
        for rank, key in enumerate(keys):
            blocks = max(held[rank], self._pending.match(key, query.blocks, hashes))
            cost = self.alpha * queued_tokens[rank] - blocks * query.block_tokens
            price = cost, requests[rank], self._chosen.get(key, 0)
            if rank == 0 or price < best_price:
                best, best_price = rank, price
        return best

    def attempt(
        self, slot: int, rank: int, query: Query, uncached_tokens: int, now: float
    ) -> Lease:
        """The request goes there; the lease counts it while entered."""
        key = _key(slot, rank)
        self._choices += 1
        self._chosen[key] = self._choices
        epoch = self._pending.insert(key, query.blocks, now)
        return Lease(self._board, key, uncached_tokens, epoch=epoch)

    def sweep(self, now: float) -> None:
        """Drops what has run out."""
        self._pending.sweep(now)

    def forget(self, slot: int) -> None:
        """The replica's caches are empty."""
        for rank in range(RANK_LIMIT):
            self._pending.forget(_key(slot, rank))
