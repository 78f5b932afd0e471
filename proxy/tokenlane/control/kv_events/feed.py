"""What the accounts hold, brought to every worker: changes as they come, all of it to a new one.

Invariants:
- A worker is told changes in order, each once, or else everything anew: one that does not keep up
  is left until it does, and then gets all at once.
- Messages are small pieces (PIECE_BYTES): a worker takes them in between requests.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from tokenlane.channel.messages import Cached
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.batches import Medium
from tokenlane.fleet_state import CacheChange

# Hashes that a worker takes in at a time: about half a millisecond.
PIECE_BYTES = 8 * 512
_COLUMNS = ("removed", "host_removed", "stored", "host_stored")


class End(Protocol):
    """A worker, as far as it is told of caches."""

    @property
    def behind(self) -> bool:
        """Whether it does not keep up with what it is told."""

    def send(self, message: Cached) -> None:
        """Tells it."""


def pieces(change: CacheChange) -> Iterator[CacheChange]:
    """The change as messages of bounded size, in the order in which they are to be applied."""
    columns = [getattr(change, name) for name in _COLUMNS]
    if sum(map(len, columns)) <= PIECE_BYTES:
        yield change
        return
    bare = msgspec.structs.replace(
        change, stored=b"", removed=b"", host_stored=b"", host_removed=b""
    )
    yield bare
    rest = msgspec.structs.replace(bare, cleared=False, forget=False)
    for name, packed in zip(_COLUMNS, columns):
        for at in range(0, len(packed), PIECE_BYTES):
            yield msgspec.structs.replace(rest, **{name: packed[at : at + PIECE_BYTES]})


def whole(account: PublisherAccount) -> CacheChange:
    """All that an account holds, as one change."""
    return CacheChange(
        account.slot,
        account.rank,
        account.ranks,
        account.standing,
        account.block_tokens,
        cleared=True,
        stored=b"".join(account.ledger.pieces(Medium.GPU)),
        host_stored=b"".join(account.ledger.pieces(Medium.HOST)),
    )


class Feed:
    """Brings accounts to workers. An account that a worker has not heard of is told whole."""

    def __init__(self) -> None:
        self._told: WeakKeyDictionary[End, WeakSet[PublisherAccount]] = WeakKeyDictionary()

    def flush(self, accounts: Iterable[PublisherAccount], ends: Iterable[End]) -> None:
        """Tells every worker what it does not know yet."""
        changes = [(account, account.take()) for account in accounts]
        for end in ends:
            told = self._told.setdefault(end, WeakSet())
            for account, change in changes:
                known = account in told
                if known and change is None:
                    continue
                if end.behind:
                    told.discard(account)
                    continue
                told.add(account)
                for piece in pieces(change if known and change is not None else whole(account)):
                    end.send(Cached(piece))
