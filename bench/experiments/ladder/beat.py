"""How late a beat of 1 ms of the running loop is, and how late its own process makes it.

A thread that is ready and has no CPU waits for the machine: for the kernel's own threads, other
processes, a host that runs another guest. Linux counts that time (`/proc/thread-self/schedstat`);
what is left of the lateness is the work on the loop, and the wait for the GIL.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bench.tools.statistics import median, quantile

_PERIOD_S = 0.001
_SHARES = (50, 99, 99.9, 100)
_SCHEDSTAT = "/proc/thread-self/schedstat"


# By the quantile's name; None where nothing was measured.
Row = dict[str, float | None]


class Beats:
    """late_s: of each beat; own_s: the same without the wait for a CPU, where that is known."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.own_s: list[float] = []

    def row(self) -> Row:
        """Quantiles in ms."""
        late = {f"p{share:g}": ms(quantile(self.late_s, share / 100)) for share in _SHARES}
        return {**late, "own_p99.9": ms(quantile(self.own_s, 0.999))}


def middle(rounds: list[Row]) -> Row:
    """The median of each quantile, and the largest maximum."""
    known = {
        name: [value for row in rounds if (value := row[name]) is not None] for name in rounds[0]
    }
    row: Row = {name: median(values) for name, values in known.items()}
    return {**row, "p100": max(known["p100"], default=None)}


@contextmanager
def beating() -> Iterator[Beats]:
    """Beats until the end."""
    loop = asyncio.get_running_loop()
    beats = Beats()
    due_s = 0.0
    waited_s: float | None = 0.0
    handle: asyncio.TimerHandle | None = None
    descriptor = -1
    with suppress(OSError):
        descriptor = os.open(_SCHEDSTAT, os.O_RDONLY)

    def beat() -> None:
        nonlocal due_s, waited_s, handle
        now_s, before_s, waited_s = time.monotonic(), waited_s, _waited_s(descriptor)
        if due_s:
            late_s = max(0.0, now_s - due_s)
            beats.late_s.append(late_s)
            if waited_s is not None and before_s is not None:
                beats.own_s.append(max(0.0, late_s - (waited_s - before_s)))
        due_s = time.monotonic() + _PERIOD_S
        handle = loop.call_later(_PERIOD_S, beat)

    beat()
    try:
        yield beats
    finally:
        if handle is not None:
            handle.cancel()
        if descriptor >= 0:
            os.close(descriptor)


def ms(seconds_s: float | None) -> float | None:
    """The same in milliseconds."""
    return None if seconds_s is None else seconds_s * 1e3


def _waited_s(descriptor: int) -> float | None:
    """How long this thread stood ready without a CPU, ever."""
    try:
        return int(os.pread(descriptor, 64, 0).split()[1]) / 1e9
    except (OSError, LookupError, ValueError):
        return None
