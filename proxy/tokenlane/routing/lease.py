"""Leases: the only place where a replica's in-flight counts change.

Invariants:
- A count is raised by entering a lease and lowered by leaving it, on every path: an answer, an
  error, a cancellation. Nothing else calls `LoadBoard.add`; paired calls leak (a router that
  used them lost 400 counts a day and sent all new prefixes to one node).
- Queued tokens end once: at the first byte, or at the exit if none came.
- A lease belongs to one attempt on one replica. The next candidate gets a new one.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from tokenlane.fleet_state import Load
from tokenlane.routing.pending import Epoch
from tokenlane.routing.progress import Progress


class LoadBoard(Protocol):
    """In-flight work per replica, summed over all workers."""

    def add(self, slot: int, requests: int, queued_tokens: int) -> None:
        """Change this worker's share of a replica's counts. Only leases call this."""

    def columns(self, slots: Sequence[int]) -> tuple[list[int], list[int]]:
        """Requests and queued tokens of the replicas now, all workers together."""
        ...

    def others(self, slots: Sequence[int]) -> Sequence[int]:
        """Return the part of these requests that other gateways sent; empty where none are told."""
        ...


class LocalBoard:
    """A LoadBoard in this process alone: for one worker, and for tests."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int]] = {}

    def add(self, slot: int, requests: int, queued_tokens: int) -> None:
        held_requests, held_tokens = self._counts.get(slot, (0, 0))
        self._counts[slot] = held_requests + requests, held_tokens + queued_tokens

    def columns(self, slots: Sequence[int]) -> tuple[list[int], list[int]]:
        counts = [self._counts.get(slot, (0, 0)) for slot in slots]
        return [requests for requests, _ in counts], [tokens for _, tokens in counts]

    def others(self, slots: Sequence[int]) -> Sequence[int]:
        return ()

    def load(self, slot: int) -> Load:
        """One replica's load."""
        return Load(*self._counts.get(slot, (0, 0)))

    def __repr__(self) -> str:
        return f"<LocalBoard {dict(sorted(self._counts.items()))}>"


class Siblings:
    """Requests in flight, by the parent that waits for them (a number, not 0). A worker counts only
    the requests it sent itself; a parent whose last request ended is forgotten."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, parent: int) -> int:
        """Requests in flight that this parent waits for."""
        return self._counts.get(parent, 0)

    def began(self, parent: int) -> None:
        """One more is on its way."""
        self._counts[parent] = self._counts.get(parent, 0) + 1

    def ended(self, parent: int) -> None:
        """One of them is over."""
        left = self._counts[parent] - 1
        if left:
            self._counts[parent] = left
        else:
            del self._counts[parent]

    def __len__(self) -> int:
        return len(self._counts)


class Lease:
    """`with Lease(board, slot, uncached_tokens) as lease: ... lease.first_byte(now) ...`

    uncached_tokens: prompt tokens the replica has to compute for this request. epoch: held open
    until they are. progress: told when it was sent (`now`) and when its first token came. rank: of
    the replica, where one was picked (else -1); at_rank: its own lease, which goes the way of this
    one. siblings: counts it for its parent.
    """

    def __init__(
        self,
        board: LoadBoard,
        slot: int,
        uncached_tokens: int,
        *,
        epoch: Epoch | None = None,
        progress: Progress | None = None,
        now: float = 0.0,
        rank: int = -1,
        at_rank: "Lease | None" = None,
        siblings: Siblings | None = None,
        parent: int = 0,
    ) -> None:
        self._board = board
        self._epoch = epoch
        self._at_rank = at_rank
        self._siblings = siblings
        self._parent = parent
        self.rank = rank
        self._queued_tokens = uncached_tokens
        self._entered = False
        self._progress = progress
        self._sent_s = now
        self._ticket = 0
        self.slot = slot

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a lease can be entered once")
        self._entered = True
        self._board.add(self.slot, 1, self._queued_tokens)
        if self._epoch is not None:
            self._epoch.open += 1
        if self._progress is not None and self._queued_tokens:
            self._ticket = self._progress.sent(self.slot, self._queued_tokens, self._sent_s)
        if self._at_rank is not None:
            self._at_rank.__enter__()
        if self._siblings is not None:
            self._siblings.began(self._parent)
        return self

    def first_byte(self, now: float = 0.0) -> None:
        """The replica began to answer: its prompt is computed. now: of a stream's first token, by
        which its speed is known; 0.0 where it began otherwise. Later calls do nothing."""
        if self._epoch is not None and self._entered:
            self._epoch.open -= 1
            self._epoch = None
        if self._at_rank is not None:
            self._at_rank.first_byte()
        if self._queued_tokens and self._entered:
            self._board.add(self.slot, 0, -self._queued_tokens)
            self._queued_tokens = 0
            if self._progress is not None:
                if now:
                    self._progress.answered(self.slot, self._ticket, now)
                else:
                    self._progress.gone(self.slot, self._ticket)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._board.add(self.slot, -1, -self._queued_tokens)
        self._queued_tokens = 0
        if self._epoch is not None:
            self._epoch.open -= 1
            self._epoch = None
        if self._progress is not None:
            self._progress.gone(self.slot, self._ticket)
        if self._at_rank is not None:
            self._at_rank.__exit__(kind, error, trace)
        if self._siblings is not None:
            self._siblings.ended(self._parent)
