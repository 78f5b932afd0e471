"""A file with a line for each request that a replica's engine took: who ran it, its id, and when
the replica had its whole body.

Invariants:
- A line is written in one piece before the engine's first step, so that it outlives a kill -9.
- Several processes may append to one file.
"""

import os


class ExecutionLog:
    """path: appended to. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def taken(self, port: int, request_id: bytes, read_s: float) -> None:
        """Write that the replica on this port begins to work on the request. read_s:
        time.monotonic() at the end of its body, the same clock in all processes of a machine."""
        os.write(self._fd, b"%d %b %.6f\n" % (port, request_id, read_s))

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)
