"""What the control groups around this process leave it: how near it is to their memory's limit, and
how many CPUs it may use.

Invariants:
- A file in the page cache is not memory in use: the kernel gives it back first.
- Where there is no limit, or nothing can be read, memory is never short and every CPU may be used.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple

_OWN = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# Version 1 writes a number near 2^63 where there is no limit, version 2 `max`.
_NO_LIMIT_BYTES = 2**60


class _Files(NamedTuple):
    """The file names of a cgroup version."""

    limit: str
    used: str
    cached: str
    quota: tuple[str, ...]


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
    ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
)
_V2 = _Files("memory.max", "memory.current", "inactive_file", ("cpu.max",))


class MemoryWatch:
    """ratio: of the limit, above which memory is short; 0: never. limit_bytes: of the tightest
    group around this process, None where there is none."""

    def __init__(self, ratio: float, own: Path = _OWN, mount: Path = _MOUNT) -> None:
        self.limit_bytes: int | None = None
        self._ratio = ratio
        self._folder, self._files = mount, _V2
        for folder, files in _groups(own, mount, "memory") if ratio else ():
            limit_bytes = _number(folder / files.limit)
            if limit_bytes is not None and limit_bytes < (self.limit_bytes or _NO_LIMIT_BYTES):
                self.limit_bytes, self._folder, self._files = limit_bytes, folder, files

    def short(self) -> bool:
        """Return whether more is in use than should be. Reads a file or two."""
        if self.limit_bytes is None:
            return False
        most_bytes = self._ratio * self.limit_bytes
        used_bytes = _number(self._folder / self._files.used) or 0
        # Reading the page cache's size is expensive, so only where it matters.
        return used_bytes > most_bytes and used_bytes - self._cached_bytes() > most_bytes

    def _cached_bytes(self) -> int:
        try:
            lines = (self._folder / "memory.stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        found = [line.split()[1] for line in lines if line.startswith(self._files.cached + " ")]
        return int(found[0]) if found else 0


def cpu_count(own: Path = _OWN, mount: Path = _MOUNT) -> int:
    """Return the number of CPUs that this process may use: those in its affinity, or fewer where a
    control group has a quota, rounded up."""
    count = len(os.sched_getaffinity(0))
    for folder, files in _groups(own, mount, "cpu"):
        try:
            words = [word for name in files.quota for word in (folder / name).read_text().split()]
            quota_us, period_us = map(int, words)
        except (OSError, ValueError):  # `max`: there is no quota
            continue
        if quota_us > 0:
            count = min(count, math.ceil(quota_us / period_us))
    return count


def _groups(own: Path, mount: Path, controller: str) -> list[tuple[Path, _Files]]:
    """Return the folders of the groups around this process, its own first. own: as
    /proc/self/cgroup. Within a container the path may lead nowhere; then the mount is the group."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top, files = (mount / controller, _V1) if controllers else (mount, _V2)
        folder = top / path.lstrip("/")
        while folder != top:
            found.append((folder, files))
            folder = folder.parent
        found.append((top, files))
    return found


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
