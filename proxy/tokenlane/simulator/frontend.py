"""The serial stage before the engine: template and tokenize, one body after the other.

Invariants:
- First come, first served, over a fixed number of processes; no process idles while work waits.
- The clock is the caller's. A body's end is known when it arrives, so nothing has to be woken.
- A client that leaves does not give its turn back: as in vLLM, the work goes on.
"""

import heapq


class FrontEnd:
    """bytes_per_s None: instant."""

    def __init__(self, bytes_per_s: float | None, processes: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = [0.0] * processes

    def enter(self, now: float, size_bytes: int) -> float:
        """Return when a body that arrives now has been tokenized."""
        if self._bytes_per_s is None:
            return now
        end_s = max(now, self._free_s[0]) + size_bytes / self._bytes_per_s
        heapq.heapreplace(self._free_s, end_s)
        return end_s
