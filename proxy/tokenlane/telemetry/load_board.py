"""The load board: what every worker has in flight at every replica, in shared memory.

Invariants:
- One writer per cell: a worker writes its own column only. Anyone reads all of them.
- A dead worker's column is zeroed by the supervisor, after the worker is gone and before its
  successor is started: its connections, and so its requests, died with it.
- Where gateways share their load, one column more holds what the other gateways have in flight.
  The supervisor alone writes it, and workers that it left behind zero it. Routing counts it
  (`columns`); what is said of this gateway does not (`load`, `own`).
- Cells never go below zero as long as every add is undone once, which leases see to.

Layout: int64 slots, workers and columns, then int64 cells [slot][column][requests, queued_tokens].
"""

import mmap
from collections.abc import Sequence
from typing import Final

from tokenlane.fleet_state import Load
from tokenlane.runtime.shared_memory import shared_file

_HEADER_WORDS: Final = 3


def create_board(slots: int, workers: int, *, peers: bool = False) -> int:
    """A zeroed board as a file descriptor to hand to the workers. peers: with a column for what
    other gateways have in flight."""
    columns = workers + 1 if peers else workers
    descriptor = shared_file("tokenlane-board", (_HEADER_WORDS + slots * columns * 2) * 8)
    with mmap.mmap(descriptor, 0) as memory, memoryview(memory).cast("q") as words:
        words[0] = slots
        words[1] = workers
        words[2] = columns
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
        self._row = words[2] * 2
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
        """Requests and queued tokens of the replicas, of all workers and all other gateways."""
        return self._summed(slots, self._row)

    def own(self, slots: Sequence[int]) -> tuple[list[int], list[int]]:
        """Requests and queued tokens of the replicas, summed over this gateway's workers."""
        return self._summed(slots, self.workers * 2)

    def others(self, slots: Sequence[int]) -> Sequence[int]:
        """The other gateways' part of the requests; empty where no load is shared."""
        at, row = self.workers * 2, self._row
        return [self._cells[slot * row + at] for slot in slots] if row > at else ()

    def _summed(self, slots: Sequence[int], width: int) -> tuple[list[int], list[int]]:
        cells, row = self._cells, self._row
        if row == 2:
            last = 0
            for slot in slots:
                last = max(last, slot)
            words = cells[: 2 * last + 2].tolist()
            return [words[2 * slot] for slot in slots], [words[2 * slot + 1] for slot in slots]
        rows = [cells[slot * row : slot * row + width].tolist() for slot in slots]
        return [sum(counts[::2]) for counts in rows], [sum(counts[1::2]) for counts in rows]

    def load(self, slot: int) -> Load:
        """One replica's load, summed over this gateway's workers."""
        (requests,), (queued_tokens,) = self.own((slot,))
        return Load(requests, queued_tokens)

    def peers(self, slot: int) -> Load:
        """What the other gateways have in flight at a replica, as far as they said."""
        at = slot * self._row + self.workers * 2
        if self._row == self.workers * 2:
            return Load(0, 0)
        return Load(self._cells[at], self._cells[at + 1])

    def place_peers(self, slot: int, requests: int, queued_tokens: int) -> None:
        """Replaces what the other gateways have in flight at a replica. Supervisor only."""
        at = slot * self._row + self.workers * 2
        self._cells[at] = requests
        self._cells[at + 1] = queued_tokens

    def forget_peers(self) -> None:
        """Count this gateway's requests alone: the supervisor is gone, and its last words age."""
        if self._row > self.workers * 2:
            for slot in range(self.slots):
                self.place_peers(slot, 0, 0)

    def clear(self, worker: int) -> None:
        """Zeroes a dead worker's column. Supervisor only."""
        for at in range(worker * 2, self.slots * self._row, self._row):
            self._cells[at] = 0
            self._cells[at + 1] = 0

    def __repr__(self) -> str:
        columns = self.columns(range(self.slots))
        rows = [f"{requests}/{queued_tokens}" for requests, queued_tokens in zip(*columns)]
        return f"SharedBoard({' '.join(rows)})"
