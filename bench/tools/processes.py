"""Processes under test: started pinned, waited for, weighed, stopped by their own id.

Invariants:
- CPU is that of the whole tree of a process, threads and living children included.
- Whatever is started is stopped, children first asked then killed.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.tools.paths import ROOT
from tokenlane.runtime import ports


class BenchError(Exception):
    """A measurement cannot be made here. The message says what to do about it."""


def need_tools(*names: str) -> None:
    """Raises BenchError naming each tool that is missing and how to get it."""
    packages = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux"}
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        install = " ".join(packages[name] for name in missing)
        raise BenchError(
            f"{' and '.join(missing)} not found: install with 'apt-get install {install}'"
        )


def two_cores() -> tuple[int, int]:
    """One core for what is measured, one for all that drives it: where there are enough, not the
    two hardware threads of one core."""
    cores = own_cores()
    if len(cores) < 2:
        cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchError("two cores are needed: one is measured, the other generates the load")
    return cores[0], cores[1]


def own_cores() -> list[int]:
    """Return the cores that are allowed here; of the threads of a core the first."""
    return [core for core in sorted(os.sched_getaffinity(0)) if core == first_thread(core)]


def first_thread(core: int) -> int:
    """The first of the hardware threads that share a core with this one; itself if not known."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return int(re.split("[,-]", path.read_text(encoding="ascii"))[0]) if path.exists() else core


@contextmanager
def one_core() -> Iterator[None]:
    """All threads of this process share one core meanwhile, as those of a worker that has one."""
    cores = os.sched_getaffinity(0)
    _keep_to({min(cores)})
    try:
        yield
    finally:
        _keep_to(cores)


def _keep_to(cores: set[int]) -> None:
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on at this moment."""
    first = ports.free_ports(count)
    return list(range(first, first + count))


class Process:
    """A command pinned to one core, for the length of a `with`.

    Its output goes to a file whose end is shown when it dies early.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        core: int | str | None = None,
        folder: Path | None = None,
    ) -> None:
        """core: one, or several as taskset lists them. folder: where it runs, and so which modules
        it imports first."""
        self.name = name
        self.folder = folder
        self.argv = list(argv) if core is None else ["taskset", "-c", str(core), *argv]
        self.log = Path(tempfile.mkstemp(prefix=f"bench-{name}-", suffix=".log")[1])

    def __enter__(self) -> Self:
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.process = psutil.Process(self.popen.pid)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tree = self.tree()
        self.popen.terminate()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        for one in tree:
            if one.is_running() and one.pid != self.popen.pid:
                one.kill()
        self.log.unlink(missing_ok=True)

    def tree(self) -> list[psutil.Process]:
        """The process and all that descend from it."""
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_s(self) -> float:
        """CPU seconds, user and system, of the tree until now."""
        total = 0.0
        for one in self.tree():
            try:
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def wait_listening(self, port: int, deadline_s: float = 30.0) -> Self:
        """Returns once the port accepts; BenchError with the end of the log if it never does."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            if self.popen.poll() is not None:
                raise BenchError(f"{self.name} died (exit {self.popen.returncode}): {self.tail()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return self
        raise BenchError(f"{self.name} did not listen within {deadline_s:g} s: {self.tail()}")

    def tail(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-2000:]


def core_used_s(core: int) -> float:
    """CPU seconds that all processes, and the host's other guests, have had of one core.

    Interrupts are left out: they serve whoever waits for the packet.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[0] == f"cpu{core}":
            user, nice, system, steal = (int(words[column]) for column in (1, 2, 3, 8))
            return (user + nice + system + steal) / ticks
    raise BenchError(f"/proc/stat knows no core {core}")


def machine_used_s() -> float:
    """Return the CPU seconds that all processes have had of the cores that are allowed here."""
    return sum(core_used_s(core) for core in os.sched_getaffinity(0))


OTHERS_LIMIT = 0.1


def others_remark(name: str, share: float) -> str | None:
    """A sentence where other processes took part of the core that is measured."""
    if share <= OTHERS_LIMIT:
        return None
    return f"{name}: other processes took {share:.0%} of its core; measure on an idle machine"


def module(name: str, *args: str) -> list[str]:
    """argv of one of our own modules on this Python."""
    return [sys.executable, "-m", name, *args]


def python_path(first: Path | None = None) -> str:
    """PYTHONPATH for one of our own modules: `first`, then what is set now, then the sources."""
    parts = [str(first) if first else "", os.environ.get("PYTHONPATH", ""), str(ROOT)]
    return os.pathsep.join(part for part in parts if part)


def pause(seconds: float) -> None:
    """Lets what was started settle; nothing is measured meanwhile."""
    time.sleep(seconds)


def say(text: str) -> None:
    """A progress line, on stderr, so that stdout holds the tables only."""
    print(text, file=sys.stderr, flush=True)
