"""The load board: what every worker has in flight at every replica, in shared memory.

Invariants:
- One writer per cell: a worker writes its own column only. Anyone reads all of them.
- A dead worker's column is zeroed by the supervisor, after the worker is gone and before its
  successor is started: its connections, and so its requests, died with it.
- Cells never go below zero as long as every add is undone once, which leases see to.

Layout: int64 slots, int64 workers, then int64 cells [slot][worker][requests, queued_tokens].
"""

import mmap
from collections.abc import Sequence

from tokenlane.fleet_state import Load
from tokenlane.runtime.shared_memory import shared_file

_HEADER_WORDS = 2


def create_board(slots: int, workers: int) -> int:
    """A zeroed board as a file descriptor to hand to the workers."""
    descriptor = shared_file("tokenlane-board", (_HEADER_WORDS + slots * workers * 2) * 8)
    with mmap.mmap(descriptor, 0) as memory, memoryview(memory).cast("q") as words:
        words[0] = slots
        words[1] = workers
    return descriptor


class SharedBoard:
    """A view of the board. `worker`: the column this process writes (None: reads only)."""

    def __init__(self, descriptor: int, worker: int | None) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        words = memoryview(self._memory).cast("q")
        self.slots = words[0]
        self.workers = words[1]
        if worker is not None and not 0 <= worker < self.workers:
            raise ValueError("no such worker on the board")
        self._cells = words[_HEADER_WORDS:]
        self._row = self.workers * 2
        self._own = None if worker is None else worker * 2

    def add(self, slot: int, requests: int, queued_tokens: int) -> None:
        """Adds to this worker's cells of a replica; negative numbers take away."""
        if self._own is None:
            raise TypeError("this end of the board only reads")
        at = slot * self._row + self._own
        cells = self._cells
        if requests:
            cells[at] += requests
        if queued_tokens:
            cells[at + 1] += queued_tokens

    def columns(self, slots: Sequence[int]) -> tuple[list[int], list[int]]:
        """Requests and queued tokens of the replicas, summed over the workers."""
        cells, row = self._cells, self._row
        if row == 2:
            words = cells[: 2 * max(slots, default=0) + 2].tolist()
            return [words[2 * slot] for slot in slots], [words[2 * slot + 1] for slot in slots]
        rows = [cells[slot * row : slot * row + row].tolist() for slot in slots]
        return [sum(counts[::2]) for counts in rows], [sum(counts[1::2]) for counts in rows]

    def load(self, slot: int) -> Load:
        """One replica's load, summed over the workers."""
        (requests,), (queued_tokens,) = self.columns((slot,))
        return Load(requests, queued_tokens)

    def clear(self, worker: int) -> None:
        """Zeroes a dead worker's column. Supervisor only."""
        for at in range(worker * 2, self.slots * self._row, self._row):
            self._cells[at] = 0
            self._cells[at + 1] = 0

    def __repr__(self) -> str:
        columns = self.columns(range(self.slots))
        rows = [f"{requests}/{queued_tokens}" for requests, queued_tokens in zip(*columns)]
        return f"SharedBoard({' '.join(rows)})"
