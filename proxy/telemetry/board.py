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

from proxy.model import Load
from proxy.telemetry.shared import shared_file

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

    def loads(self, slots: Sequence[int]) -> list[Load]:
        """The replicas' loads, summed over the workers."""
        cells, row = self._cells, self._row
        if row == 2:
            return [Load(cells[2 * slot], cells[2 * slot + 1]) for slot in slots]
        loads = []
        for slot in slots:
            counts = cells[slot * row : slot * row + row].tolist()
            loads.append(Load(sum(counts[::2]), sum(counts[1::2])))
        return loads

    def load(self, slot: int) -> Load:
        """One replica's load, summed over the workers."""
        return self.loads((slot,))[0]

    def clear(self, worker: int) -> None:
        """Zeroes a dead worker's column. Supervisor only."""
        for at in range(worker * 2, self.slots * self._row, self._row):
            self._cells[at] = 0
            self._cells[at + 1] = 0

    def __repr__(self) -> str:
        loads = self.loads(range(self.slots))
        rows = [f"{load.requests}/{load.queued_tokens}" for load in loads]
        return f"SharedBoard({' '.join(rows)})"
