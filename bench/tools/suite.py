"""Runs experiments one after the other, each in a process of its own with a time budget.

Invariants:
- An experiment that fails or overruns its budget costs the report its section, nothing more.
- The short form ends in time: what does not fit into SHORT_LIMIT_S is stopped or left out.
- What an experiment started ends with it: it is asked first, and its whole tree is killed after.
"""

import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec
import psutil

from bench.tools.command_line import Options, Scale
from bench.tools.finding import Finding
from bench.tools.processes import BenchError, module, python_path

GRACE_S = 15.0
# Of the whole short form, the compiled build included.
SHORT_LIMIT_S = 570.0
BAR_CELLS = 24
# How many times a short form a long one takes, where nobody measured it.
_LONGER = 5.0


class Member(NamedTuple):
    """An experiment or study. expected_s: its length on two cores, in the short form unless told
    otherwise. limit_s: what no form of it may take longer than. long_s: its length in the long
    form, 0 where nobody measured that."""

    name: str
    module: str
    expected_s: float
    limit_s: float = math.inf
    long_s: float = 0.0

    def of(self, scale: Scale) -> "Member":
        """Return it as it is in this form."""
        if scale != "full":
            return self
        return self._replace(expected_s=self.long_s or _LONGER * self.expected_s)

    def budget_s(self) -> float:
        """Return the time after which it is stopped: it hangs, or the machine is far too busy."""
        return min(self.expected_s * 3.0 + 60.0, self.limit_s)


class Laboratory(NamedTuple):
    """Experiments that are run together, and where their report goes.

    scale: the form that is run unless another is asked for. limits_s: of all, by form. around:
    what its experiments share, there while they run.
    """

    title: str
    members: tuple[Member, ...]
    scale: Scale
    limits_s: dict[Scale, float]
    out: Path
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def chosen(self, names: Sequence[str], scale: Scale = "short") -> list[Member]:
        """Return the members of these names in the suite's order, without names all of them, as
        they are in this form. Raise BenchError for an unknown one."""
        known = {member.name for member in self.members}
        if unknown := sorted(set(names) - known):
            raise BenchError(
                f"no such experiment: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        chosen = (member for member in self.members if not names or member.name in names)
        return [member.of(scale) for member in chosen]


class Progress:
    """Bars on a terminal, lines otherwise. planned_s: expected length of all of it."""

    def __init__(self, out: TextIO, planned_s: float) -> None:
        self._out = out
        self._bars = out.isatty()
        self._planned_s = max(planned_s, 1.0)
        self._done_s = 0.0
        self._last = ""

    def begin(self, member: Member, number: int, count: int) -> None:
        """An experiment starts."""
        self._head = f"{number}/{count} {member.name}"
        self._member = member
        self._last = ""
        if not self._bars:
            self._out.write(f"== {self._head}, about {member.expected_s:.0f} s\n")
            self._out.flush()

    def line(self, text: str) -> None:
        """It said something."""
        self._last = text.strip()
        if not self._bars:
            self._out.write(f"{text}\n")
            self._out.flush()

    def tick(self, elapsed_s: float) -> None:
        """Draws the bar anew."""
        if self._bars:
            done_s = self._done_s + min(elapsed_s, self._member.expected_s)
            self._out.write(f"\r\x1b[K{bar(done_s / self._planned_s)} {self._head} "
                            f"{elapsed_s:.0f} s  {self._last[:60]}")  # fmt: skip
            self._out.flush()

    def end(self) -> None:
        """The experiment is over."""
        self._done_s += self._member.expected_s
        if self._bars:
            self._out.write("\r\x1b[K")
            self._out.flush()


def bar(share: float) -> str:
    """`[####....]  50 %`."""
    share = min(1.0, max(0.0, share))
    full = round(share * BAR_CELLS)
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}] {share:4.0%}"


def run(
    members: Sequence[Member],
    options: Options,
    progress: Progress,
    on_end: Callable[[Member, Finding | str], None],
    left_s: float = math.inf,
) -> None:
    """Runs them in order. on_end hears each finding, or why there is none. left_s: for all."""
    end_s = time.monotonic() + left_s
    for number, member in enumerate(members, 1):
        progress.begin(member, number, len(members))
        try:
            ended: Finding | str = run_one(member, options, progress, end_s - time.monotonic())
        except BenchError as error:
            ended = str(error)
        progress.end()
        on_end(member, ended)


def run_one(
    member: Member, options: Options, progress: Progress, left_s: float = math.inf
) -> Finding:
    """One experiment in its process. Raises BenchError with what it said when it failed."""
    if left_s <= 0:
        raise BenchError("it was left out: the time for all experiments was over")
    budget_s = min(member.budget_s(), left_s)
    with tempfile.TemporaryDirectory(prefix="bench-suite-") as folder:
        path = Path(folder) / "finding.json"
        argv = [*module(member.module), *options.argv(), "--json", str(path)]
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": python_path()},
        ) as process:
            try:
                said = _watch(process, budget_s, progress)
            finally:
                _end(process)
        if process.returncode:
            raise BenchError(said[-1] if said else f"it ended with code {process.returncode}")
        return msgspec.json.decode(path.read_bytes(), type=Finding)


def _watch(process: subprocess.Popen[str], budget_s: float, progress: Progress) -> list[str]:
    """Passes on what the process says until it ends; its last lines. Raises BenchError when the
    budget is spent."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    began_s = time.monotonic()
    said: list[str] = []
    while True:
        elapsed_s = time.monotonic() - began_s
        if elapsed_s > budget_s:
            raise BenchError(f"it was stopped after its budget of {budget_s:.0f} s")
        progress.tick(elapsed_s)
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            return said[-20:]
        said.append(line)
        progress.line(line)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends it and all that descends from it."""
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        tree = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    for one in tree:
        if one.is_running():
            one.kill()


def progress_on(stream: TextIO | None, members: Sequence[Member]) -> Progress:
    """Progress of these members on a stream (stderr)."""
    return Progress(stream or sys.stderr, sum(member.expected_s for member in members))
