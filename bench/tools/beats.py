"""A worker of the gateway whose data loop keeps a beat that another process reads as it goes.

    python -m bench.tools.beats FILE CHANNEL_FD    (started by the supervisor, see bench.tools.host)

Invariants:
- The beat is the bench's own: it measures whatever gateway there is, its stall monitor included.
- FILE is shared memory: a count, then (time.monotonic(), lateness) pairs in the order of time. A
  beat is counted after it is written, so a reader never sees half of one.
- What is later than a few milliseconds was late for everybody: every request waits for the loop.
"""

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tokenlane.worker import main as worker

PERIOD_S = 0.002
LIMIT_BEATS = 1_000_000
_COUNT, _BEAT = struct.Struct("<q"), struct.Struct("<dd")
_SIZE = _COUNT.size + LIMIT_BEATS * _BEAT.size
Result = TypeVar("Result")


class Beats:
    """The beats of a worker, as seen from outside."""

    def __init__(self, path: Path) -> None:
        """Makes the file, empty."""
        self._path = path
        with path.open("wb") as file:
            file.truncate(_SIZE)

    def late_s(self, since_s: float, until_s: float) -> list[float]:
        """How late each beat was that was due between two times of time.monotonic(), in seconds. To
        be asked once the loop is at rest: a stall is known when it is over. A beat that is still
        to come is as late as `until_s` shows it to be: no news is no good news."""
        with self._path.open("rb") as file:
            (count,) = _COUNT.unpack(file.read(_COUNT.size))
            raw = file.read(count * _BEAT.size)
        beats = list(_BEAT.iter_unpack(raw))
        found = [late for at, late in beats if since_s <= at - late <= until_s]
        missing_s = until_s - max(since_s, beats[-1][0] + PERIOD_S if beats else since_s)
        return [*found, missing_s] if missing_s > 0 and count < LIMIT_BEATS else found


class Beat:
    """Beats on the running loop until the process ends."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._due_s = time.monotonic()
        self._beat()

    def _beat(self) -> None:
        now_s = time.monotonic()
        if self._count < LIMIT_BEATS:
            at = _COUNT.size + self._count * _BEAT.size
            _BEAT.pack_into(self._memory, at, now_s, max(0.0, now_s - self._due_s))
            self._count += 1
            _COUNT.pack_into(self._memory, 0, self._count)
        # uvloop counts from when its turn began; a beat must not be late because the turn was long.
        self._due_s = time.monotonic() + PERIOD_S
        self._loop.call_later(PERIOD_S, self._beat)


def main() -> None:
    """The gateway's own worker, with a beat beside it."""
    path = Path(sys.argv.pop(1))
    run = uvloop.run

    def beaten(main_of_worker: Coroutine[Any, Any, Result]) -> Result:
        async def both() -> Result:
            beat = Beat(path)
            try:
                return await main_of_worker
            finally:
                del beat

        return run(both())

    uvloop.run = beaten  # type: ignore[assignment]  # the worker's own main sets all else up
    worker.main()


if __name__ == "__main__":
    main()
