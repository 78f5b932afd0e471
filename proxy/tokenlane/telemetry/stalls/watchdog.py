"""The watchdog: a thread that samples the loop's thread while the loop is late.

Invariants:
- It sleeps while the loop is healthy, because the heartbeat moves the alarm it waits for. So it
  costs nothing then, and never takes the GIL.
- While the loop is late it looks every millisecond first, ever more seldom later: a stall of a
  minute is not a million looks.
- It writes `watched` only, and first of all: it may be given the GIL just before the beat, and
  the loop goes on at the first call that gives it back.
"""

import gc
import logging
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import NamedTuple, overload

from tokenlane.telemetry.stalls.causes import Look
from tokenlane.telemetry.stalls.heartbeat import Heartbeat
from tokenlane.telemetry.stalls.stages import LOOP
from tokenlane.telemetry.stalls.stall import InHand

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.05
_PAUSE_GROWTH = 1.3
_LOOK_LIMIT_COUNT = 200
_FRAME_LIMIT_COUNT = 30
_STAT_LIMIT_BYTES = 512
_STATUS_LIMIT_BYTES = 8192
_SWITCHES = re.compile(rb"\nvoluntary_ctxt_switches:\t(\d+)")

Requests = tuple[tuple[InHand, ...], int]


class Watched(NamedTuple):
    """A late beat as seen from outside the loop. beat: the number of the one before. in_hand: the
    first few requests, and how many there were."""

    beat: int
    looks: list[Look]
    in_hand: Requests


NOTHING = Watched(-1, [], ((), 0))


class Watchdog:
    """Watches the loop of the thread that makes it. in_hand: called in the watchdog's thread."""

    def __init__(self, heart: Heartbeat, in_hand: Callable[[], Requests]) -> None:
        self._heart = heart
        self._in_hand = in_hand
        self._ended = False
        self._loop_thread = threading.get_ident()
        self._loop_clock = time.pthread_getcpuclockid(self._loop_thread)
        self._stat = _open(threading.get_native_id(), "stat")
        self._status = -1
        self._slept = 0
        self.watched = NOTHING
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()
        ident, native_id = self._thread.ident, self._thread.native_id
        assert ident is not None
        assert native_id is not None
        self._clock = time.pthread_getcpuclockid(ident)
        self._status = _open(native_id, "status")

    def stop(self) -> None:
        """End the thread. The heartbeat must have stopped."""
        self._ended = True
        self._heart.alarm.set(0.0)
        self._thread.join()
        for descriptor in (self._stat, self._status):
            if descriptor >= 0:
                os.close(descriptor)

    def cpu_s(self) -> float:
        """Return the CPU seconds of the watchdog's thread until now."""
        return time.clock_gettime(self._clock)

    def waits(self) -> int:
        """Return how often the watchdog went to sleep since it last waited for the alarm, its
        pauses between looks included; 0 where the kernel does not tell."""
        if self._status < 0:
            return 0
        found = _SWITCHES.search(os.pread(self._status, _STATUS_LIMIT_BYTES, 0))
        return max(0, int(found[1]) - self._slept) if found is not None else 0

    def _run(self) -> None:
        while not self._ended:
            self._slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            self._heart.alarm.wait()
            if not self._ended:
                try:
                    self._watch()
                except Exception:
                    # A failed look loses a stall's cause; a worker without its watchdog ends.
                    log.exception("the watchdog could not sample the loop")

    def _watch(self) -> None:
        heart = self._heart
        count = heart.count
        wanted_s = heart.alarm_due_s
        if time.monotonic() < wanted_s:
            return  # it beat while the alarm fired
        looks: list[Look] = []
        pause_s = _FIRST_PAUSE_S
        while heart.count == count and not self._ended:
            looks.append(self._look(wanted_s))
            if len(looks) == 1:
                self.watched = Watched(count, looks, self._in_hand())
            looks[-1] = looks[-1]._replace(state=self._state())
            if len(looks) >= _LOOK_LIMIT_COUNT:
                return
            wanted_s = time.monotonic() + pause_s
            time.sleep(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * _PAUSE_GROWTH)

    def _look(self, wanted_s: float) -> Look:
        now_s = time.monotonic()
        return Look(
            now_s,
            LOOP.stage,
            stack_of(self._loop_thread),
            "?",
            time.clock_gettime(self._loop_clock),
            max(0.0, now_s - wanted_s),
        )

    def _state(self) -> str:
        """Return the state of the loop's thread. Gives up the GIL."""
        if self._stat < 0:
            return "?"
        # `TID (name) S …`, and the name may hold brackets.
        _, _, rest = os.pread(self._stat, _STAT_LIMIT_BYTES, 0).rpartition(b") ")
        return rest[:1].decode("ascii", "replace") or "?"


def stack_of(thread: int) -> "Stack":
    """Return what another thread is at. thread: its identifier.

    Without collections: one that begins under the walk may run finalizers, and those give the GIL
    away. The frames then end, and Python 3.11 goes on in their memory (it crashed a worker).
    """
    gc.disable()
    try:
        return Stack(sys._current_frames().get(thread))  # noqa: SLF001 - its documented use
    finally:
        gc.enable()


class Stack(Sequence[str]):
    """`file:line function` of each frame, innermost first. Files as their package names them. Words
    are made of a frame when they are asked for: of most stacks nobody does."""

    def __init__(self, frame: FrameType | None) -> None:
        self._frames: list[tuple[CodeType, int]] = []
        # Whatever else stands where a frame is due ends the walk.
        while isinstance(frame, FrameType) and len(self._frames) < _FRAME_LIMIT_COUNT:
            self._frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back

    def __len__(self) -> int:
        return len(self._frames)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [_words(*one) for one in self._frames[index]]
        return _words(*self._frames[index])


def _words(code: CodeType, line: int) -> str:
    return f"{_short(code.co_filename)}:{line} {code.co_qualname}"


def _short(path: str) -> str:
    """Shorten a path to `tokenlane/relay/response.py`, `uvloop/__init__.py` or
    `asyncio/runners.py`."""
    for mark in ("/site-packages/", "/tokenlane/"):
        at = path.rfind(mark)
        if at >= 0:
            return path[at + 1 :] if mark == "/tokenlane/" else path[at + len(mark) :]
    return "/".join(path.rsplit("/", 2)[-2:])


def _open(native_id: int, name: str) -> int:
    """Return a thread's file in /proc; -1 where there is none."""
    try:
        return os.open(f"/proc/self/task/{native_id}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
