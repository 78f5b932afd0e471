"""Where lines are written: standard output or error, or a file that may be rotated away.

Invariants:
- One thread uses a sink. It may wait there for a slow reader, never past `stop`.
- Nothing raises: what cannot be written (full disk, closed pipe) is reported as not written.
- After a line that was cut off in the middle the next one begins on a line of its own.
- Standard output is shared with other processes: its flags are left alone, and pieces are small
  enough for a pipe to take whole.
"""

import errno
import os
import select
import sys
import threading
from pathlib import Path

from tokenlane.errors import ConfigError

PIECE_LIMIT_BYTES = 4096  # PIPE_BUF: written whole or not at all
_LOOK_S = 0.1
_STANDARD = {"stdout": lambda: sys.stdout, "stderr": lambda: sys.stderr}
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


def check_target(target: str) -> None:
    """Raise ConfigError where a sink could not be opened; no file is made."""
    path = Path(target)
    if target in _STANDARD:
        return
    try:
        if path.exists():
            os.close(os.open(path, _FLAGS & ~os.O_CREAT))
        else:
            os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
            if not os.access(path.parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"log.access: {target} cannot be written ({error.strerror})") from None


class Sink:
    """target: stdout, stderr or a path. ConfigError if it cannot be opened."""

    def __init__(self, target: str, stop: threading.Event) -> None:
        self._stop = stop
        self._path: Path | None = None
        self._torn = False
        if target in _STANDARD:
            try:
                self._fd = _STANDARD[target]().fileno()
            except (AttributeError, OSError, ValueError):  # closed, or no real file
                raise ConfigError(f"log.access: this process has no {target}") from None
        else:
            self._path = Path(target)
            try:
                self._fd = os.open(self._path, _FLAGS, 0o640)
            except OSError as error:
                raise ConfigError(
                    f"log.access: {target} cannot be written ({error.strerror})"
                ) from None

    @property
    def terminal(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._fd)

    def refresh(self) -> None:
        """Reopen the file where it was renamed or removed."""
        if self._path is None:
            return
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return
        except OSError:
            pass  # gone: created again
        try:
            fd = os.open(self._path, _FLAGS, 0o640)
        except OSError:
            return  # the old file is better than none
        os.close(self._fd)
        self._fd, self._torn = fd, False

    def write(self, data: bytes) -> bool:
        """Write whole lines, at most PIECE_LIMIT_BYTES; False where they were not written."""
        left = memoryview(b"\n" + data if self._torn else data)
        while left:
            if not self._writable():
                return False
            try:
                written = os.write(self._fd, left)
            except BlockingIOError:
                continue
            except OSError:
                return False
            left = left[written:]
            self._torn = bool(left)
        return True

    def close(self) -> None:
        """Close the file; standard output stays open."""
        if self._path is not None:
            os.close(self._fd)

    def _writable(self) -> bool:
        """Wait until the output is writable or until told to stop."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            stopping = self._stop.is_set()
            if poll.poll(0 if stopping else _LOOK_S * 1000):
                return True
            if stopping:
                return False
