"""Planted stalls, for benches and tests that must know why a loop was late.

    PLANT_STALL=STAGE:KIND:SECONDS:EVERY[:LOG]      (see bench.tools.planted_gateway)

Every EVERY-th time a worker's loop enters STAGE it is held for SECONDS, in one of these ways:

    sleep    the loop's thread sleeps                                       cause: the stage
    spin     it runs Python                                                 cause: the stage
    hold     it runs one C call that holds the GIL                          cause: the stage
    hog      another thread does that, a moment later                       cause: gil
    collect  the garbage collector walks a big heap                         cause: gc
    stop     the process is stopped (SIGSTOP), a moment later               cause: os

LOG: a file that gets a line for each when it is over, `BEGAN_S ENDED_S CPU_S`: two times of
time.monotonic(), and what it used of a CPU meanwhile.

Invariants:
- The product does not know of this: the plant listens to the marks of its loop.
- The length of a C call or a collection is measured first: the first plant is late by that.
"""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from bench.tools.processes import BenchError
from tokenlane.telemetry.stalls.stages import CAUSES, METRICS

PLANTED_GATEWAY = "bench.tools.planted_gateway"
VARIABLE = "PLANT_STALL"
STAGES = CAUSES[: METRICS + 1]
CAUSE_OF = {"hog": "gil", "collect": "gc", "stop": "os"}
KINDS = ("sleep", "spin", "hold", *CAUSE_OF)
# Long enough for the loop to have left the stage that asked for it.
_MOMENT_S = 0.001
# What the collector takes for an object at most, on a core that has little cache.
_DEAREST_OBJECT_S = 200e-9

_STOPPER = """
import os, signal, sys, time
pid, moment_s, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
for line in sys.stdin:
    time.sleep(moment_s)
    os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    time.sleep(seconds)
    ended_s = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    print(began_s, ended_s, flush=True)
"""


class Plan(NamedTuple):
    """What the variable says. log: empty for none."""

    stage: str
    kind: str
    seconds: float
    every: int
    log: str = ""

    @property
    def cause(self) -> str:
        """What these stalls must be charged to."""
        return CAUSE_OF.get(self.kind, self.stage)

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Raises BenchError where it cannot be read."""
        words = text.split(":", 4)
        try:
            stage, kind, seconds, every = words[:4]
            plan = cls(stage, kind, float(seconds), int(every), "".join(words[4:]))
        except ValueError:
            plan = None
        if (
            plan is None
            or plan.stage not in STAGES
            or plan.kind not in KINDS
            or plan.every < 1
            or not 0.0 < plan.seconds <= 60.0
        ):
            raise BenchError(
                f"{VARIABLE}={text} is not STAGE:KIND:SECONDS:EVERY[:LOG] with a stage of "
                f"{', '.join(STAGES)} and a kind of {', '.join(KINDS)}"
            )
        return plan


class Plant:
    """Counts how often the stage is entered, and stalls the loop when it is time."""

    def __init__(self, plan: Plan) -> None:
        self._stage = CAUSES.index(plan.stage)
        self._every = plan.every
        self._left = plan.every
        self._planting = False
        self._log = _append(plan.log) if plan.log else -1
        self._kind = plan.kind
        self._seconds = plan.seconds
        self._stall: Callable[[], object] | None = None
        self._ends: list[Callable[[], object]] = []

    def marked(self, stage: int) -> None:
        """Of LoopStage.on_mark."""
        if stage != self._stage or self._planting:
            return
        self._left -= 1
        if self._left:
            return
        self._left = self._every
        if self._stall is None:
            self._stall = self._make()  # takes its time, and is no planted stall
            return
        self._planting = True
        try:
            self._stall()
        finally:
            self._planting = False

    def close(self) -> None:
        """Ends what was started; a process that ends anyway need not."""
        while self._ends:
            self._ends.pop()()
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def _make(self) -> Callable[[], object]:
        seconds = self._seconds
        if self._kind == "hog":
            return self._hogging(seconds)
        if self._kind == "stop":
            return self._stopping(seconds)
        if self._kind == "hold":
            return partial(self._timed, _holding(seconds))
        if self._kind == "collect":
            return partial(self._timed, _collecting(seconds))
        return partial(
            self._timed, partial(time.sleep if self._kind == "sleep" else _spin, seconds)
        )

    def _timed(self, stall: Callable[[], object]) -> None:
        began_s, cpu_s = time.monotonic(), time.thread_time()
        stall()
        self._note(began_s, time.monotonic(), time.thread_time() - cpu_s)

    def _note(self, began_s: float, ended_s: float, cpu_s: float) -> None:
        if self._log >= 0:
            os.write(self._log, b"%.6f %.6f %.6f\n" % (began_s, ended_s, cpu_s))

    def _hogging(self, seconds: float) -> Callable[[], object]:
        hold = _holding(seconds)
        asked: SimpleQueue[bool] = SimpleQueue()

        def hog() -> None:
            while asked.get():
                time.sleep(_MOMENT_S)
                self._timed(hold)

        thread = threading.Thread(target=hog, name="hog", daemon=True)
        thread.start()
        self._ends += [thread.join, partial(asked.put, False)]
        return partial(asked.put, True)

    def _stopping(self, seconds: float) -> Callable[[], object]:
        argv = [sys.executable, "-c", _STOPPER, str(os.getpid()), str(_MOMENT_S), str(seconds)]
        # Ends when this process does: its stdin closes then.
        stopper = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        ask, said = stopper.stdin, stopper.stdout
        assert ask is not None
        assert said is not None

        def note() -> None:
            for line in said:
                began, ended = line.split()
                self._note(float(began), float(ended), 0.0)

        thread = threading.Thread(target=note, name="stopped", daemon=True)
        thread.start()
        self._ends += [said.close, thread.join, stopper.wait, ask.close]

        def stall() -> None:
            with contextlib.suppress(BrokenPipeError):
                ask.write("\n")

        return stall


def _spin(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def _holding(seconds: float) -> Callable[[], object]:
    """One C call that holds the GIL for about so long: a sum does, from its first number on."""
    probe = range(200_000)
    best_s = 1.0
    for _ in range(20):
        began_s = time.monotonic()
        sum(probe)
        best_s = min(best_s, time.monotonic() - began_s)
    numbers = range(int(len(probe) * seconds / best_s))
    return lambda: sum(numbers)


def _collecting(seconds: float) -> Callable[[], object]:
    """A collection of a heap that takes about so long to walk, what is there already included."""
    heap: list[object] = []
    while (missing_s := seconds - min(_collects_s() for _ in range(3))) > seconds / 10:
        heap.extend([heap] for _ in range(int(missing_s / _DEAREST_OBJECT_S)))

    def collect() -> list[object]:
        gc.collect()
        return heap  # which keeps it

    return collect


def _collects_s() -> float:
    began_s = time.monotonic()
    gc.collect()
    return time.monotonic() - began_s


def _append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
