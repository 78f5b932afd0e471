"""One generation of an index: a prefix-closed set of block hashes, stored as runs.

Invariants:
- The set is prefix-closed: with a hash, every hash before it in its chain.
- Runs lie on a fixed grid: run r holds blocks [RUN_BLOCKS * r, RUN_BLOCKS * (r + 1)) and is kept
  under the hash of the block before it. So whether run r exists for a given prefix is one dict
  lookup, and those lookups are a binary search too. Run 0 of all prompts is one set, `roots`.
- `blocks` is the exact number of distinct hashes held.

Why runs: about 13 bytes a block instead of 56 (a set of ints) or 100 (a dict), an insertion of
6,250 blocks makes 196 entries, and tables stay small enough that rehashing one while it grows,
or freeing it, is no stall. Where many prompts part ways after the same block, their runs become
one set of hashes (`_RUNS_LIMIT`). All prompts part ways after "nothing", so run 0 is a set from the
start: the prompts of a single run, which are the most, are looked up with one or two probes.
"""

import sys

RUN_BLOCKS = 32
_RUN_BYTES = 8 * RUN_BLOCKS

# Different continuations of one prefix, kept packed and looked through one by one, before they
# become a set: a set costs five probes and about 60 bytes a block, a run one compare and 9.
_RUNS_LIMIT = 8

# What CPython pays around a packed run: the bytes object's head and the key's int object.
_RUN_OVERHEAD_BYTES = 33 + 40
_SET_BLOCK_BYTES = 60

Runs = bytes | list[bytes] | set[int]


def _shared(left: bytes, right: bytes) -> int:
    """Blocks that two packed runs of one chain have in common at their start."""
    if left.startswith(right):
        return len(right) // 8
    low, high = 0, min(len(left), len(right)) // 8
    while low < high:  # chained: equal at i means equal before i
        middle = (low + high) // 2
        if left[8 * middle : 8 * middle + 8] == right[8 * middle : 8 * middle + 8]:
            low = middle + 1
        else:
            high = middle
    return low


def _held(known: set[int], hashes: memoryview, low: int, high: int) -> int:
    """The first block in [low, high) that is not known, else `high`."""
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low


def _shared_any(runs: Runs, blocks: bytes, hashes: memoryview, start: int) -> int:
    """Blocks of the run of `blocks` that begins at block `start` held by any of `runs`."""
    if isinstance(runs, set):
        return _held(runs, hashes, start, min(start + RUN_BLOCKS, len(hashes))) - start
    packed = blocks[8 * start : 8 * start + _RUN_BYTES]
    if isinstance(runs, bytes):
        return _shared(runs, packed)
    return max(_shared(run, packed) for run in runs)


def _joined(runs: Runs | None, packed: bytes) -> Runs:
    """`runs` with `packed` among them; a run that `packed` continues is replaced by it."""
    if runs is None:
        return packed
    if isinstance(runs, set):
        runs.update(memoryview(packed).cast("Q"))
        return runs
    if isinstance(runs, bytes):
        return packed if packed.startswith(runs) else [runs, packed]
    for position, run in enumerate(runs):
        if packed.startswith(run):
            runs[position] = packed
            return runs
    runs.append(packed)
    if len(runs) <= _RUNS_LIMIT:
        return runs
    hashes: set[int] = set()
    hashes.update(*(memoryview(run).cast("Q") for run in runs))
    return hashes


class Generation:
    """A growing prefix-closed set of chained hashes (see the module's invariants).

    roots: hashes of every prompt's first run. blocks: hashes held in all.
    """

    __slots__ = ("_runs", "_set_blocks", "blocks", "roots")

    def __init__(self) -> None:
        self._runs: dict[int, Runs] = {}
        self._set_blocks = 0
        self.roots: set[int] = set()
        self.blocks = 0

    def match(self, blocks: bytes, hashes: memoryview) -> int:
        """Blocks held of the start of `blocks` (packed uint64; `hashes` is its "Q" view)."""
        runs, count = self._runs, len(hashes)
        if not count or hashes[0] not in self.roots:
            return 0
        low, high = 0, (count - 1) // RUN_BLOCKS  # run `low` is known to exist
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle * RUN_BLOCKS - 1] in runs:
                low = middle
            else:
                high = middle - 1
        if not low:
            return _held(self.roots, hashes, 1, min(count, RUN_BLOCKS))
        start = low * RUN_BLOCKS
        return start + _shared_any(runs[hashes[start - 1]], blocks, hashes, start)

    def insert(self, blocks: bytes, hashes: memoryview, matched: int) -> None:
        """Add all of `blocks`, of which this generation holds `matched` (as `match` says)."""
        count = len(hashes)
        if matched == count:
            return
        self.blocks += count - matched
        runs = self._runs
        start = matched // RUN_BLOCKS * RUN_BLOCKS
        if not start:
            self.roots.update(hashes[matched:RUN_BLOCKS])
        else:
            known = runs.get(hashes[start - 1])
            held = len(known) if isinstance(known, set) else 0
            joined = _joined(known, blocks[8 * start : 8 * start + _RUN_BYTES])
            runs[hashes[start - 1]] = joined
            if isinstance(joined, set):
                self._set_blocks += len(joined) - held
        start += RUN_BLOCKS
        if start >= count:
            return
        # What follows is new to this generation, so no key below can be there already.
        runs.update(
            zip(
                hashes[start - 1 : count - 1 : RUN_BLOCKS],
                [blocks[at : at + _RUN_BYTES] for at in range(8 * start, 8 * count, _RUN_BYTES)],
                strict=True,
            )
        )

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated from the layout."""
        return (
            sys.getsizeof(self._runs)
            + _RUN_OVERHEAD_BYTES * len(self._runs)
            + 8 * (self.blocks - self._set_blocks - len(self.roots))
            + _SET_BLOCK_BYTES * (self._set_blocks + len(self.roots))
        )
