"""Whether files have changed, without reading them.

Invariants:
- Links are followed: a config map that is swapped by its link has changed.
- A file that is not there has a stamp too, and that it comes is a change.
"""

from collections.abc import Iterable
from pathlib import Path

# By name: device, inode, size and time of change, None for what cannot be looked at.
Stamps = dict[str, tuple[int, int, int, int] | None]


def _stamp(file: str) -> tuple[int, int, int, int] | None:
    try:
        seen = Path(file).stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def stamps(files: Iterable[str]) -> Stamps:
    """Return the current times and sizes of the files."""
    return {file: _stamp(file) for file in files}
