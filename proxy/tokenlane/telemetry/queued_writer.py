"""A queue that the loop appends to, and a thread that writes what is in it.

Invariants:
- The loop waits for nothing: to put something in is an append, or a count where the queue is full.
- What cannot be written is counted as failed, and nothing else happens.
- `close` returns within `CLOSE_LIMIT_S`, with all that could be written written.
"""

import threading
import time
from collections import deque
from typing import Generic, NamedTuple, TypeVar

CLOSE_LIMIT_S = 1.0

_Item = TypeVar("_Item")


class LineCounts(NamedTuple):
    """Items since the start. full: dropped because the queue was; failed: not written."""

    written: int = 0
    full: int = 0
    failed: int = 0


class QueuedWriter(Generic[_Item]):
    """The queue and its thread, which looks every `period_s`. limit: of items; item_bytes: memory
    of one, estimated. Whoever inherits starts `_thread`, and says in `_write_all` what it does."""

    def __init__(self, name: str, period_s: float, limit: int, item_bytes: int) -> None:
        self._period_s = period_s
        self._limit = limit
        self._item_bytes = item_bytes
        self._queue: deque[_Item] = deque()
        self._full = self._written = self._failed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def size_bytes(self) -> int:
        """Memory of the queued items, estimated."""
        return len(self._queue) * self._item_bytes

    @property
    def limit_bytes(self) -> int:
        """The limit of that memory."""
        return self._limit * self._item_bytes

    def counts(self) -> LineCounts:
        """Return the counts so far."""
        return LineCounts(self._written, self._full, self._failed)

    def close(self) -> None:
        """Write what is queued, as far as it is accepted soon."""
        self._stop.set()
        self._thread.join(CLOSE_LIMIT_S)

    def offer(self, item: _Item) -> None:
        """Queue an item to be written. Called on the loop."""
        if len(self._queue) >= self._limit:
            self._full += 1
        else:
            self._queue.append(item)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(self._period_s)
            # The two clocks drift apart only by NTP's steps, so once a round is often enough.
            self._write_all(time.time() - time.monotonic())

    def _write_all(self, offset_s: float) -> None:
        """Write what is queued. offset_s: from time.monotonic() to Unix time."""
        raise NotImplementedError
