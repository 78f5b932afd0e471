"""The last stalls of all workers, and how late their loops were.

Invariants:
- Memory is bounded: the last hundred stalls, whatever their workers' number, the ten since the
  start in which one piece of work held a loop the longest, for each cause the lengths of at most a
  hundred that are the longest of the last minute, and one window of lateness per worker number.
- A stall is kept as JSON: as objects, its frames and requests take more than twice the memory.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tokenlane.telemetry.stalls.lateness import WINDOW_S, LatenessWindow
from tokenlane.telemetry.stalls.stall import Stall

KEPT_COUNT = 100
HELD_COUNT = 10


class _Kept(NamedTuple):
    """What a stall is found by, and all of it as JSON."""

    at_s: float
    held_s: float
    json: bytes


class StallLog:
    """What the workers told. clock: rises with time, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stalls: deque[_Kept] = deque(maxlen=KEPT_COUNT)
        self._held: list[_Kept] = []
        # By cause, when a stall ended and how long it was, each longer than all that came after it.
        self._longest: dict[str, deque[tuple[float, float]]] = {}
        self._windows: dict[int, LatenessWindow] = {}
        self._worst: dict[int, float] = {}

    def stalled(self, stall: Stall) -> None:
        """A worker's loop was held."""
        kept = _Kept(stall.at_s, stall.held_s, msgspec.json.encode(stall))
        self._stalls.append(kept)
        lately = self._longest.setdefault(stall.cause, deque())
        while lately and lately[-1][1] <= stall.length_s:
            lately.pop()
        if len(lately) < KEPT_COUNT:
            lately.append((stall.began_s + stall.length_s, stall.length_s))
        if kept.held_s > (self._held[-1].held_s if len(self._held) == HELD_COUNT else 0.0):
            self._held.append(kept)
            self._held.sort(key=lambda one: one.held_s, reverse=True)
            del self._held[HELD_COUNT:]

    def beats(self, worker: int, lateness: bytes) -> None:
        """How late a worker's latest heartbeats were (packed float32 seconds)."""
        window = self._windows.setdefault(worker, LatenessWindow())
        worst_s = window.add(lateness, self._clock())
        if worst_s is not None:
            self._worst[worker] = max(self._worst.get(worker, 0.0), worst_s)

    def take_worst(self) -> dict[int, float]:
        """Return by worker how late its latest heartbeat was since the last call."""
        taken, self._worst = self._worst, {}
        return taken

    def longest(self) -> dict[str, float]:
        """Return by cause the longest stall that ended within WINDOW_S."""
        since_s = self._clock() - WINDOW_S
        for lately in self._longest.values():
            while lately and lately[0][0] < since_s:
                lately.popleft()
        return {cause: lately[0][1] for cause, lately in self._longest.items() if lately}

    def view(self) -> dict[str, Any]:
        """For `/stalls`: the workers' lateness, the stalls, the latest first, and those since the
        start in which one piece of work had a CPU for the longest time, the longest first."""
        now_s = self._clock()
        return {
            "window_s": WINDOW_S,
            "workers": [
                {"worker": worker, **window.summary(now_s)}
                for worker, window in sorted(self._windows.items())
            ],
            "stalls": [
                _told(one) for one in sorted(self._stalls, key=lambda one: one.at_s, reverse=True)
            ],
            "held": [_told(one) for one in self._held],
        }


def _told(kept: _Kept) -> dict[str, Any]:
    return {"at": _at(kept.at_s), **msgspec.json.decode(kept.json)}


def _at(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
