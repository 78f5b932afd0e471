"""PrefixIndex: which prefixes each replica was given, in-flight prompts included.

Invariants:
- A prompt is inserted when it is routed, not when it is answered: the next turn or a sibling
  that arrives in between must find it (worth up to 25 points of hits on public traces).
- Nothing expires by time. Old prefixes leave when newer ones fill the replica's capacity, as in
  the replica itself.
- A replica that restarts loses its entries at once (`forget`).

- What one tenant adds takes nothing from another that keeps within its share (below).

The approximation. Two generations per replica and tenant. When all tenants together have added
`capacity` blocks since they last did, there is a turn: who has more than its share begins anew,
its young generation becomes the old one, and the old one before it is dropped. The share is the
max-min fair one, at least `capacity` divided by the tenants that have anything there, and all of
it for a tenant alone. (The first turn of all comes early: nothing is dropped at it.) So
- the last `capacity` distinct blocks touched by anybody are always held (a superset of an exact
  LRU), however many tenants there are;
- of each tenant the last blocks that it touched within `keep_s` are held too, up to its share,
  whatever others add meanwhile; what it has not touched for longer is held as if there were no
  shares. (Old generations larger than the share, of a time when their tenants had more, go before
  they fill three times the capacity, the oldest first.)
- never more than 2 x `capacity` blocks are held without tenants, and 5 x with them.
An index too large costs under one point of hits on public traces, one too small 10 to 18, which
is why the error lies on this side. Of a prompt longer than the capacity the head is held: a
replica frees a sequence from its tail.
"""

from collections.abc import Iterable
from typing import Final

from tokenlane.routing.fair_share import fair_share
from tokenlane.routing.generation import Generation

# Parts of a capacity: halves, quarters and so on down to these.
_PARTS: Final = 64


class _Replica:
    """added_blocks: by all tenants, since the last turn."""

    __slots__ = ("added_blocks", "capacity_blocks", "slot")

    def __init__(self, slot: int, capacity_blocks: int) -> None:
        self.slot = slot
        self.capacity_blocks = capacity_blocks
        self.begin()

    def begin(self) -> None:
        """From empty on. The first turn comes early, by another part of the capacity for each
        replica: alike in load, they would have their turns together, and memory would go up and
        down with them."""
        self.added_blocks = self.capacity_blocks * _spread(self.slot) // _PARTS


def _spread(number: int) -> int:
    """Return one of _PARTS: the first few numbers, and all of them, lie about evenly among them."""
    place, part = 0, _PARTS // 2
    while part:
        place += part * (number % 2)
        number //= 2
        part //= 2
    return place


class _Shelf:
    """What one replica was given of one tenant. since_s: when the young generation began."""

    __slots__ = ("old", "replica", "since_s", "young")

    def __init__(self, replica: _Replica, now: float) -> None:
        self.replica = replica
        self.since_s = now
        self.young = Generation()
        self.old = Generation()

    def begin(self, now: float) -> None:
        """A new generation."""
        self.old = self.young
        self.young = Generation()
        self.since_s = now


def _since_s(shelf: _Shelf) -> float:
    return shelf.since_s


class PrefixIndex:
    """Longest-prefix lookups over all replicas of a worker, bounded per replica.

    `blocks` is always packed uint64 as tokenlane.tokens.blocks makes it (chained hashes; those of
    two tenants are never equal). tenant: empty where there are none. now: monotonic seconds. All
    methods run on the loop: a lookup is logarithmic in the prompt, an insertion costs the blocks
    that are new, and once in `capacity` of them a look at each tenant.
    """

    def __init__(self, limit_blocks: int, keep_s: float = 0.0) -> None:
        """limit_blocks: capacity of a replica whose cache size is not known, and the most that
        is kept for any (>= 1). keep_s: see the module; 0: tenants have no share."""
        if limit_blocks < 1:
            raise ValueError("limit_blocks must be at least 1")
        self.keep_s = keep_s
        self._limit_blocks = limit_blocks
        self._replicas: dict[int, _Replica] = {}
        self._tenants: dict[str, dict[int, _Shelf]] = {}

    def _replica(self, slot: int) -> _Replica:
        replica = self._replicas.get(slot)
        if replica is None:
            replica = self._replicas[slot] = _Replica(slot, self._limit_blocks)
        return replica

    def _shelf(self, slot: int, tenant: str, now: float) -> _Shelf:
        shelves = self._tenants.get(tenant)
        if shelves is None:
            shelves = self._tenants[tenant] = {}
        shelf = shelves.get(slot)
        if shelf is None:
            shelf = shelves[slot] = _Shelf(self._replica(slot), now)
        return shelf

    def set_capacity(self, slot: int, cache_blocks: int | None) -> None:
        """What the replica's cache holds, in blocks of this index (None: unknown)."""
        capacity = min(cache_blocks or self._limit_blocks, self._limit_blocks)
        replica = self._replica(slot)
        if replica.capacity_blocks != capacity:
            replica.capacity_blocks = capacity
            if not self.held_blocks(slot):
                replica.begin()

    def insert(
        self, slot: int, blocks: bytes, tenant: str = "", now: float = 0.0, guess: int = 0
    ) -> None:
        """The replica was sent a prompt with these blocks; they are its most recent now. guess:
        how many of them it holds, as `match` said a moment ago."""
        if not blocks:
            return
        shelf = self._shelf(slot, tenant, now)
        replica = shelf.replica
        if len(blocks) > 8 * replica.capacity_blocks:
            blocks = blocks[: 8 * replica.capacity_blocks]
        hashes = memoryview(blocks).cast("Q")
        young = shelf.young
        matched = young.match(blocks, hashes, guess)
        if replica.added_blocks + len(hashes) - matched > replica.capacity_blocks:
            self._turn(slot, shelf, len(hashes) - matched, now)
            if shelf.young is not young:
                young, matched = shelf.young, 0
        replica.added_blocks += len(hashes) - matched
        young.insert(blocks, hashes, matched)

    def _turn(self, slot: int, inserting: _Shelf, new: int, now: float) -> None:
        """Who is alone or has more than its share begins anew, or first came keep_s ago or more.
        new: blocks about to come in for `inserting`."""
        replica = inserting.replica
        replica.added_blocks = 0
        shelves = [shelves[slot] for shelves in self._tenants.values() if slot in shelves]
        wanted = [shelf.young.blocks + (new if shelf is inserting else 0) for shelf in shelves]
        share_blocks = fair_share(
            [max(blocks, shelf.old.blocks) for blocks, shelf in zip(wanted, shelves, strict=True)],
            replica.capacity_blocks,
        )
        is_alone, too_large = len(shelves) == 1, list[_Shelf]()
        for shelf, blocks in zip(shelves, wanted, strict=True):
            if is_alone or blocks > share_blocks or now - shelf.since_s >= self.keep_s:
                shelf.begin(now)
            elif shelf.old.blocks > share_blocks:
                too_large.append(shelf)
        if not is_alone:
            self._drop(
                too_large, sum([one.old.blocks for one in shelves]) - 3 * replica.capacity_blocks
            )
            self._clear_away(slot, inserting)

    def _drop(self, shelves: list[_Shelf], blocks: int) -> None:
        """So many blocks or more of these old generations, the oldest first."""
        for shelf in sorted(shelves, key=_since_s):
            if blocks <= 0:
                break
            blocks -= shelf.old.blocks
            shelf.old = Generation()

    def _clear_away(self, slot: int, inserting: _Shelf) -> None:
        """Tenants that have nothing there any more take no share."""
        for tenant, shelves in list(self._tenants.items()):
            shelf = shelves.get(slot)
            if shelf is None or shelf is inserting or shelf.young.blocks or shelf.old.blocks:
                continue
            del shelves[slot]
            if not shelves:
                del self._tenants[tenant]

    def match(self, slot: int, blocks: bytes, tenant: str = "") -> int:
        """Leading blocks of `blocks` that the replica should hold."""
        return self.match_all((slot,), blocks, tenant)[0]

    def match_all(self, slots: Iterable[int], blocks: bytes, tenant: str = "") -> list[int]:
        """`match` for several replicas at once, in the order of `slots`."""
        hashes = memoryview(blocks).cast("Q")
        count = len(hashes)
        shelves = self._tenants.get(tenant)
        found = []
        if not count or shelves is None:
            return [0 for _ in slots]
        first = hashes[0]
        guess = 0  # where a prompt goes on alone, it mostly does for all replicas
        for slot in slots:
            shelf = shelves.get(slot)
            if shelf is None:
                found.append(0)
                continue
            matched = 0
            if first in shelf.young.roots:
                matched = shelf.young.match(blocks, hashes, guess)
            if matched < count and first in shelf.old.roots:
                # Both sets are prefix-closed, so the union's longest match is one of theirs.
                matched = max(matched, shelf.old.match(blocks, hashes, guess or matched))
            found.append(matched)
            guess = guess or matched
        return found

    def forget(self, slot: int) -> None:
        """The replica's cache is empty (it restarted, or cleared it). Its capacity stays."""
        for tenant, shelves in list(self._tenants.items()):
            if shelves.pop(slot, None) is not None and not shelves:
                del self._tenants[tenant]
        self._replica(slot).begin()

    def remove(self, slot: int) -> None:
        """The replica is gone for good."""
        self.forget(slot)
        del self._replicas[slot]

    def held_blocks(self, slot: int) -> int:
        """Blocks held for one replica; those in both generations count twice."""
        held = [shelves[slot] for shelves in self._tenants.values() if slot in shelves]
        return sum([shelf.young.blocks + shelf.old.blocks for shelf in held])

    @property
    def size_bytes(self) -> int:
        """Memory of all replicas' entries, estimated."""
        return sum(
            [
                shelf.young.size_bytes + shelf.old.size_bytes
                for shelves in self._tenants.values()
                for shelf in shelves.values()
            ]
        )

    def __len__(self) -> int:
        return sum(map(self.held_blocks, self._replicas))

    def __repr__(self) -> str:
        each = ", ".join(
            f"{slot}: {self.held_blocks(slot)}/{replica.capacity_blocks}"
            for slot, replica in sorted(self._replicas.items())
        )
        return f"<PrefixIndex {{{each}}} blocks>"
