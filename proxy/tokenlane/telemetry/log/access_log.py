"""The access log: the loop puts entries into a queue, and a thread formats and writes them.

Invariants:
- The loop formats nothing, writes nothing and waits for nothing.
- A failing or slow output (full disk, closed pipe, a reader that sleeps) loses lines, which are
  counted, and nothing else.
"""

import logging

from tokenlane.config.settings import LogSettings
from tokenlane.prompt import HASH_BYTES
from tokenlane.telemetry.log.lines import ENTRY_BYTES, Entry, json_line, text_line
from tokenlane.telemetry.log.prompt_prefix import LIMIT_MARKS
from tokenlane.telemetry.log.sink import PIECE_LIMIT_BYTES, Sink
from tokenlane.telemetry.queued_writer import QueuedWriter

PERIOD_S = 0.2

log = logging.getLogger(__name__)


class AccessLog(QueuedWriter[Entry]):
    """A worker's access log. Raises ConfigError where it cannot be opened."""

    def __init__(self, settings: LogSettings, worker: int = 0) -> None:
        marks_bytes = HASH_BYTES * LIMIT_MARKS if settings.prefix_block_tokens else 0
        entry_bytes = ENTRY_BYTES + marks_bytes
        super().__init__("access-log", PERIOD_S, settings.queue_limit_lines, entry_bytes)
        self.settings = settings
        self._worker = worker
        self._sink = Sink(settings.access, self._stop)
        as_text = settings.format == "text" or (settings.format == "auto" and self._sink.terminal)
        self._line = text_line if as_text else json_line
        self._thread.start()

    def close(self) -> None:
        """Write the queued lines, as far as the output accepts them."""
        super().close()
        if not self._thread.is_alive():
            self._sink.close()

    def _write_all(self, offset_s: float) -> None:
        self._sink.refresh()
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
