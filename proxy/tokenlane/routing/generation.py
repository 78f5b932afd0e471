"""One generation of an index: a prefix-closed set of block hashes, stored as runs.

Invariants:
- The set is prefix-closed: with a hash, every hash before it in its chain.
- Runs lie on a fixed grid: run r holds blocks [RUN_BLOCKS * r, RUN_BLOCKS * (r + 1)) and is kept
  under the hash of the block before it. So whether run r exists for a given prefix is one dict
  lookup, and those lookups are a binary search too. Run 0 of a prompt is kept in `roots`, under
  the hash of its first block, and holds those behind it.
- `blocks` is the exact number of distinct hashes held.

Why runs: about 15 bytes a block instead of the 100 of a set of ints, an insertion of
6,250 blocks makes 196 entries, and tables stay small enough that rehashing one while it grows,
or freeing it, is no stall. A run that is held up to its end lies in a `HashStore`; the end of a
prompt, from which a longer one goes on, is a bytes object. Where prompts part ways within a run, as
behind a system prompt that many share, it becomes a small radix tree: one entry for each that goes
on differently, however many blocks follow. A short prompt, as most are, is one entry.
"""

import sys
from typing import Final

from tokenlane.routing.hash_store import PIECE_BYTES, HashStore, part, place

RUN_BLOCKS: Final = 32
_RUN_BYTES: Final = 8 * RUN_BLOCKS
_PIECE_BLOCKS: Final = PIECE_BYTES // 8

# What CPython pays for a hash as an int object; for an entry: its key and a place; for the end of a
# prompt: the bytes object's head, and what the allocator rounds up by; for a fork: its head and an
# empty dict; for each way on behind it: its key, its place in the dict, and what it leads to.
_HASH_BYTES: Final = 48
_ENTRY_BYTES: Final = _HASH_BYTES + 32
_END_BYTES: Final = 33 + 15
_FORK_BYTES: Final = 300
_WAY_BYTES: Final = 100

# Packed hashes: the end of a prompt, or a place in the store.
Stretch = bytes | int


class Fork:
    """Where prompts part ways within a run. head: the hashes they share; ways: by the hash that
    follows (8 bytes), what comes after that one."""

    __slots__ = ("head", "ways")

    def __init__(self, head: Stretch, ways: "dict[bytes, Runs]") -> None:
        self.head = head
        self.ways = ways


Runs = Stretch | Fork


def _common(left: bytes, right: bytes) -> int:
    """Bytes of whole blocks that two packed stretches of one chain share at their start."""
    if left.startswith(right):
        return len(right)
    low, high = 0, min(len(left), len(right)) // 8
    while low < high:  # chained: equal at i means equal before i
        middle = (low + high) // 2
        if left[8 * middle : 8 * middle + 8] == right[8 * middle : 8 * middle + 8]:
            low = middle + 1
        else:
            high = middle
    return 8 * low


def _part(stretch: Stretch, low: int, high: int) -> Stretch:
    """Return some of the hashes of a stretch."""
    if isinstance(stretch, int):
        return part(stretch, low, high)
    return stretch[8 * low : 8 * high]


class Generation:
    """A growing prefix-closed set of chained hashes (see the module's invariants).

    roots: every prompt's first run, by its first hash. blocks: hashes held in all.
    """

    __slots__ = ("_ends_bytes", "_forked", "_forks", "_runs", "_store", "blocks", "roots")

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}
        self._store = HashStore()
        self._ends_bytes = 0
        self._forked = 0  # insertions that met a fork or made one
        self._forks = 0
        self.roots: dict[int, Runs] = {}
        self.blocks = 0

    def match(self, blocks: bytes, hashes: memoryview, guess: int = 0) -> int:
        """Blocks held of the start of `blocks` (packed uint64; `hashes` is its "Q" view). guess:
        what it may be, as another generation said: a right one takes two lookups for any length.
        """
        runs, count = self._runs, len(hashes)
        root = self.roots.get(hashes[0]) if count else None
        if root is None:
            return 0
        if count <= RUN_BLOCKS:
            return 1 + self._shared(root, blocks[8:])
        low, high = 0, (count - 1) // RUN_BLOCKS  # run `low` is known to exist
        if guess:
            run = min(guess // RUN_BLOCKS, high)
            if not run or hashes[run * RUN_BLOCKS - 1] in runs:
                found = self._within(run, blocks, hashes)
                if found < (run + 1) * RUN_BLOCKS:
                    return found
                low = run
            else:
                high = run - 1
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle * RUN_BLOCKS - 1] in runs:
                low = middle
            else:
                high = middle - 1
        return self._within(low, blocks, hashes)

    def _within(self, run: int, blocks: bytes, hashes: memoryview) -> int:
        """Blocks held, of this run's at most: it is known to exist."""
        if not run:
            return 1 + self._shared(self.roots[hashes[0]], blocks[8:_RUN_BYTES])
        start = run * RUN_BLOCKS
        packed = blocks[8 * start : 8 * start + _RUN_BYTES]
        return start + self._shared(self._runs[hashes[start - 1]], packed)

    def insert(self, blocks: bytes, hashes: memoryview, matched: int) -> None:
        """Add all of `blocks`, of which this generation holds `matched` (as `match` says)."""
        count = len(hashes)
        if matched == count:
            return
        self.blocks += count - matched
        runs = self._runs
        start = matched // RUN_BLOCKS * RUN_BLOCKS
        table, key = (runs, hashes[start - 1]) if start else (self.roots, hashes[0])
        run = blocks[8 * max(start, 1) : 8 * start + _RUN_BYTES]
        known = table.get(key)
        joined = self._joined(known, run, whole=count >= start + RUN_BLOCKS)
        if joined is not known:
            table[key] = joined
        if isinstance(joined, Fork):
            self._forked += 1
        start += RUN_BLOCKS
        if start >= count:
            return
        # What follows is new to this generation, so no key below can be there already.
        end = count - (count - start) % RUN_BLOCKS
        for low in range(start, end, _PIECE_BLOCKS):
            high = min(low + _PIECE_BLOCKS, end)
            number = self._store.add(blocks[8 * low : 8 * high]) - low
            for at in range(low, high, RUN_BLOCKS):
                runs[hashes[at - 1]] = place(number + at, RUN_BLOCKS)
        if end < count:
            runs[hashes[end - 1]] = self._kept(blocks[8 * end :], whole=False)

    def _kept(self, packed: bytes, *, whole: bool) -> Stretch:
        """Keep hashes. whole: up to the end of a run."""
        if whole:
            return place(self._store.add(packed), len(packed) // 8)
        if packed:
            self._ends_bytes += len(packed) + _END_BYTES
        return packed

    def _packed(self, stretch: Stretch) -> bytes:
        return self._store.packed(stretch) if isinstance(stretch, int) else stretch

    def _shared(self, runs: Runs, packed: bytes) -> int:
        """Return how many blocks of the start of `packed` `runs` hold."""
        at = 0
        while isinstance(runs, Fork):
            head = self._packed(runs.head)
            common = _common(head, packed[at:])
            at += common
            if common < len(head):
                return at // 8
            way = runs.ways.get(packed[at : at + 8])
            if way is None:
                return at // 8
            at += 8
            runs = way
        return (at + _common(self._packed(runs), packed[at:])) // 8

    def _joined(self, runs: Runs | None, packed: bytes, *, whole: bool) -> Runs:
        """Return `runs` with `packed` among them; what `packed` goes on from is replaced by it.
        whole: it goes up to the end of the run."""
        if runs is None:
            return self._kept(packed, whole=whole)
        first = runs.head if isinstance(runs, Fork) else runs
        head = self._packed(first)
        at = _common(head, packed)
        if at == len(packed):
            return runs
        key, own = packed[at : at + 8], packed[at + 8 :]
        if at < len(head):
            low = at // 8
            rest = _part(first, low + 1, len(head) // 8)
            below = Fork(rest, runs.ways) if isinstance(runs, Fork) else rest
            ways: dict[bytes, Runs] = {head[at : at + 8]: below}
            runs = Fork(_part(first, 0, low), ways)
            self._forks += 1
        if isinstance(runs, Fork):
            runs.ways[key] = self._joined(runs.ways.get(key), own, whole=whole)
            return runs
        if isinstance(runs, bytes) and runs:
            self._ends_bytes -= len(runs) + _END_BYTES
        return self._kept(packed, whole=whole)

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated from the layout."""
        return (
            self._store.size_bytes
            + sys.getsizeof(self._runs)
            + sys.getsizeof(self.roots)
            + _ENTRY_BYTES * (len(self._runs) + len(self.roots))
            + self._ends_bytes
            + _FORK_BYTES * self._forks
            + _WAY_BYTES * self._forked
        )
