"""Less CPU for a running gateway: a quota by cgroup, or what else this machine permits.

Invariants:
- Whatever was set is lifted at the end, and its cgroup removed.
- `how` says what was used: a quota of the kernel, or stops and starts that imitate one.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from bench.tools.processes import pause

PERIOD_S = 0.1  # the kernel's own default, and Kubernetes'
CGROUPS = Path("/sys/fs/cgroup")


class Tree(Protocol):
    """Processes that are limited together: a process and its descendants, or a part of a server."""

    def tree(self) -> list[psutil.Process]:
        """Return the processes that are there now."""


class Quota:
    """Of one process tree. limit(None) lifts it."""

    how = "nothing"

    def limit(self, cores: float | None) -> None:
        """No more than so many cores from now on."""
        raise NotImplementedError


class CgroupQuota(Quota):
    """CFS bandwidth of a cgroup, version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`)."""

    def __init__(self, folder: Path, process: Tree) -> None:
        """Raises OSError where that is not permitted."""
        self._folder = folder
        folder.mkdir()
        try:
            self._second = (folder / "cpu.max").exists()
            self.how = f"a cgroup quota (version {2 if self._second else 1}, per {PERIOD_S:g} s)"
            self.limit(None)
            for one in process.tree():
                (folder / "cgroup.procs").write_text(str(one.pid), encoding="ascii")
        except OSError:
            self.close()
            raise

    def limit(self, cores: float | None) -> None:
        period_us = int(PERIOD_S * 1e6)
        quota = None if cores is None else int(cores * period_us)
        if self._second:
            text = f"{'max' if quota is None else quota} {period_us}"
            (self._folder / "cpu.max").write_text(text, encoding="ascii")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
            text = str(-1 if quota is None else quota)
            (self._folder / "cpu.cfs_quota_us").write_text(text, encoding="ascii")

    def close(self) -> None:
        """Removes the cgroup; what was in it goes back to its parent."""
        with contextlib.suppress(OSError):
            parent = self._folder.parent / "cgroup.procs"
            for pid in (self._folder / "cgroup.procs").read_text(encoding="ascii").split():
                with contextlib.suppress(OSError):  # it ended meanwhile
                    parent.write_text(pid, encoding="ascii")
        for _ in range(20):
            try:
                self._folder.rmdir()
            except OSError:
                pause(0.05)
            else:
                return


class StopQuota(Quota):
    """SIGSTOP and SIGCONT by turns: below one core it runs that share of the time, on one core."""

    how = f"SIGSTOP and SIGCONT by turns, per {PERIOD_S:g} s (no cgroup is writable here)"

    def __init__(self, process: Tree) -> None:
        self._process = process
        self._all = os.sched_getaffinity(0)
        self._cores: float | None = None
        self._wake, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def limit(self, cores: float | None) -> None:
        few = cores is not None and cores <= 1
        allowed = {min(self._all)} if few else self._all
        for one in self._process.tree():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(one.pid, allowed)
        self._cores = cores if few and cores is not None and cores < 1 else None
        self._wake.set()

    def _run(self) -> None:
        while not self._end.is_set():
            cores = self._cores
            if cores is None:
                self._wake.wait()
                self._wake.clear()
                continue
            self._signal(signal.SIGSTOP)
            pause(PERIOD_S * (1 - cores))
            self._signal(signal.SIGCONT)
            pause(PERIOD_S * cores)

    def _signal(self, number: signal.Signals) -> None:
        for one in self._process.tree():
            with contextlib.suppress(OSError):
                os.kill(one.pid, number)

    def close(self) -> None:
        """Everything runs again."""
        self._cores = None
        self._end.set()
        self._wake.set()
        self._thread.join()
        self._signal(signal.SIGCONT)


def folders() -> list[Path]:
    """Where a cgroup with a CPU quota could be made: version 2 first."""
    name = f"tokenlane-bench-{os.getpid()}"
    found = []
    controllers = CGROUPS / "cgroup.subtree_control"
    if controllers.is_file() and "cpu" in controllers.read_text(encoding="ascii").split():
        found.append(CGROUPS / name)
    if (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists():
        found.append(CGROUPS / "cpu" / name)
    return found


@contextmanager
def quota_of(process: Tree) -> Iterator[Quota]:
    """The best that is permitted here, for all that are in the tree now."""
    made: CgroupQuota | StopQuota | None = None
    for folder in folders():
        try:
            made = CgroupQuota(folder, process)
        except OSError:
            continue
        break
    made = made or StopQuota(process)
    try:
        yield made
    finally:
        made.close()
