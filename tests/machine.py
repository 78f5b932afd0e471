"""What this machine is like while the tests run: how slow it is, and what was taken of it."""

import contextlib
import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_STOLEN_FIELD = 8
_LOOPS = 100_000
# What they take on the machines that limits were set on.
_LOOPS_S = 0.003
_SLOWEST = 8.0


def slowness() -> float:
    """How many times as long as where limits were set this thread's CPU takes now for the same
    work: at least 1, and no more than 8."""
    took_s = []
    for _ in range(5):
        began_s = time.thread_time()
        total = 0
        for number in range(_LOOPS):
            total += number
        took_s.append(time.thread_time() - began_s)
    return min(max(1.0, sorted(took_s)[2] / _LOOPS_S), _SLOWEST)


def stolen_s() -> float:
    """What the hypervisor has taken of this machine's CPUs, in seconds; 0 where nobody tells."""
    with contextlib.suppress(OSError, IndexError):
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(fields[_STOLEN_FIELD]) / os.sysconf("SC_CLK_TCK")
    return 0.0
