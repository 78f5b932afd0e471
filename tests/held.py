"""The gate of row O11: under no test does a piece of work of the gateway hold its loop for 50 ms.

What counts is the CPU time that one piece of work used, however long a busy machine made it wait:
in a gateway of the test's own process from mark to mark (tokenlane.telemetry.stalls.stages), in one
that is a process by what its stall monitor told (`held` of /stalls). The collector's time is not
counted.

Invariants:
- Every test that starts a gateway is judged, by pytest_runtest_call in conftest: it asks nobody.
- What a test plants with PLANT_STALL is not held against it.
- Time that the hypervisor took from this machine may have been taken from any piece of work, and
  a slow machine (tests.machine) takes as much longer for each.
"""

import contextlib
import gc
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from tracemalloc import is_tracing
from typing import Self

from bench.tools.client import fetch
from bench.tools.planted import VARIABLE
from tokenlane.telemetry.stalls.stages import CAUSES, LOOP, OTHER

LIMIT_S = 0.05
_BEATS = "tokenlane_loop_stall_seconds_count{"


@dataclass
class Held:
    """What gateways did to their loops. pieces: of work, in this process. beats: of the loops of
    gateways in processes of their own, of which there were `processes`. longest_s: the longest
    piece of work; where: in which stage or stack."""

    pieces: int = 0
    beats: int = 0
    processes: int = 0
    longest_s: float = 0.0
    where: str = ""

    def held(self, cpu_s: float, where: str) -> None:
        """A piece of work was over."""
        if cpu_s > self.longest_s:
            self.longest_s, self.where = cpu_s, where

    def add(self, other: Self) -> None:
        """The same of two."""
        self.pieces += other.pieces
        self.beats += other.beats
        self.processes += other.processes
        self.held(other.longest_s, other.where)

    def refusal(self, limit_s: float = LIMIT_S) -> str | None:
        """What is wrong with it; None if nothing is."""
        if self.longest_s <= limit_s:
            return None
        return f"the gateway's loop was held for {self.longest_s * 1e3:.0f} ms of CPU: {self.where}"


def told(admin_port: int) -> Held:
    """What the stall monitor of a gateway that is a process saw, since it started."""
    seen = Held(processes=1)
    stalls, metrics = (fetch(admin_port, path) for path in ("/stalls", "/metrics"))
    if stalls.status != 200 or metrics.status != 200:
        return Held()  # it ends, or the test has taken its control plane away
    for stall in json.loads(stalls.body)["held"]:
        stack = ", ".join(stall["stack"][:3])
        seen.held(stall["held_s"], f"{stall['cause']} of worker {stall['worker']} ({stack})")
    for line in metrics.body.decode().splitlines():
        if line.startswith(_BEATS):
            seen.beats += int(float(line.rsplit(" ", 1)[1]))
    return seen


class Gate:
    """What was held since it was last asked. It listens to the marks of this process while a
    gateway is `watched`; with every allocation traced, work takes many times as long, and is not
    judged."""

    def __init__(self) -> None:
        self._seen = Held()
        self._watched = 0
        self._stage = OTHER
        self._thread = 0
        self._began_s = 0.0
        self._gc_began_s = 0.0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Of a gateway in this process, by whichever loop."""
        self._watched += 1
        if self._watched == 1:
            self._stage = OTHER
            LOOP.on_mark(self._marked)
            gc.callbacks.append(self._collecting)
        try:
            yield
        finally:
            self._watched -= 1
            if not self._watched:
                LOOP.on_mark(None)
                gc.callbacks.remove(self._collecting)

    def ends(self, admin_port: int) -> None:
        """A gateway that is a process is about to be stopped."""
        if VARIABLE not in os.environ:
            self._seen.add(told(admin_port))

    def take(self) -> Held:
        """What was seen since the last call."""
        seen, self._seen = self._seen, Held()
        return seen

    def _marked(self, stage: int) -> None:
        cpu_s = time.thread_time()
        if self._stage == OTHER:
            self._began_s, self._thread = cpu_s, threading.get_ident()
        elif stage == OTHER and self._thread == threading.get_ident() and not is_tracing():
            self._seen.pieces += 1
            self._seen.held(cpu_s - self._began_s, f"until the end of {CAUSES[self._stage]}")
        self._stage = stage

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        """Moves the beginning on: the collector walks all that the tests have, too."""
        if phase == "start":
            self._gc_began_s = time.thread_time()
        elif self._thread == threading.get_ident():
            self._began_s += time.thread_time() - self._gc_began_s


GATE = Gate()
