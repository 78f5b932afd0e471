"""The access log: the loop puts entries into a queue, and a thread formats and writes them.

Invariants:
- The loop formats nothing, writes nothing and waits for nothing: `offer` is an append, or a count
  where the queue is full.
- A failing or slow output (full disk, closed pipe, a reader that sleeps) loses lines, which are
  counted, and nothing else.
- `close` returns within `CLOSE_LIMIT_S`, with all that could be written written.
"""

import logging
import threading
import time
from collections import deque

import msgspec

from tokenlane.config.settings import LogSettings
from tokenlane.prompt import HASH_BYTES
from tokenlane.telemetry.log.lines import ENTRY_BYTES, Entry, json_line, text_line
from tokenlane.telemetry.log.prompt_prefix import LIMIT_MARKS
from tokenlane.telemetry.log.sink import PIECE_LIMIT_BYTES, Sink

PERIOD_S = 0.2
CLOSE_LIMIT_S = 1.0

log = logging.getLogger(__name__)


class LineCounts(msgspec.Struct, frozen=True):
    """Lines since the start. full: dropped because the queue was; failed: not written."""

    written: int = 0
    full: int = 0
    failed: int = 0


class AccessLog:
    """A worker's access log. Raises ConfigError where it cannot be opened."""

    def __init__(self, settings: LogSettings, worker: int = 0) -> None:
        self.settings = settings
        self._worker = worker
        self._stop = threading.Event()
        self._sink = Sink(settings.access, self._stop)
        as_text = settings.format == "text" or (settings.format == "auto" and self._sink.terminal)
        self._line = text_line if as_text else json_line
        self._queue: deque[Entry] = deque()
        self._limit = settings.queue_limit_lines
        marks_bytes = HASH_BYTES * LIMIT_MARKS if settings.prefix_block_tokens else 0
        self._entry_bytes = ENTRY_BYTES + marks_bytes
        self._full = self._written = self._failed = 0
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def offer(self, entry: Entry) -> None:
        """Queue a request to be logged. Called on the loop."""
        if len(self._queue) >= self._limit:
            self._full += 1
        else:
            self._queue.append(entry)

    @property
    def size_bytes(self) -> int:
        """Memory of the queued entries, estimated."""
        return len(self._queue) * self._entry_bytes

    @property
    def limit_bytes(self) -> int:
        """The limit of that memory."""
        return self._limit * self._entry_bytes

    def counts(self) -> LineCounts:
        """Return the counts of lines so far."""
        return LineCounts(self._written, self._full, self._failed)

    def close(self) -> None:
        """Write the queued lines, as far as the output accepts them."""
        self._stop.set()
        self._thread.join(CLOSE_LIMIT_S)
        if not self._thread.is_alive():
            self._sink.close()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(PERIOD_S)
            self._sink.refresh()
            # The two clocks drift apart only by NTP's steps, so once a round is often enough.
            offset_s = time.time() - time.monotonic()
            while self._queue:
                self._write(offset_s)

    def _write(self, offset_s: float) -> None:
        """Write as many lines as fit into one piece."""
        lines: list[bytes] = []
        size_bytes = 0
        while self._queue and size_bytes < PIECE_LIMIT_BYTES:
            entry = self._queue[0]
            try:
                line = self._line(entry, entry.ended_s + offset_s, self._worker)
            except Exception:
                log.exception("a line of the access log could not be formatted")
                self._failed += 1
                self._queue.popleft()
                continue
            if lines and size_bytes + len(line) > PIECE_LIMIT_BYTES - 1:
                break
            lines.append(line)
            size_bytes += len(line)
            self._queue.popleft()
        if not lines:
            return
        if self._sink.write(b"".join(lines)):
            self._written += len(lines)
        else:
            self._failed += len(lines)
