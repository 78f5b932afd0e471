"""What the kernel counts for the gateway's processes, under the names of Prometheus' client
libraries.

Invariants:
- A process that is gone, or that may not be looked at, has no samples.
"""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import Sample

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# In Unix time, by the clock as it was first seen: when a process was started does not change.
_BOOTED_S = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def process_samples(name: str, pid: int) -> Iterator[Sample]:
    """Yield a process' samples. name: what it is labelled."""
    folder = _PROC / str(pid)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        fds = len(os.listdir(folder / "fd"))  # noqa: PTH208 - many, and only their number matters
        max_fds, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except OSError:
        return
    # proc(5): what follows the program's name, which may hold anything, begins with field 3.
    words = stat.rpartition(")")[2].split()
    user_ticks, system_ticks, started_ticks, resident_pages = (
        int(words[field - 3]) for field in (14, 15, 22, 24)
    )
    yield families.PROCESS_CPU, (name,), [(user_ticks + system_ticks) / _TICKS_PER_S]
    yield families.PROCESS_MEMORY, (name,), [float(resident_pages * _PAGE_BYTES)]
    yield families.PROCESS_START, (name,), [_BOOTED_S + started_ticks / _TICKS_PER_S]
    yield families.PROCESS_FDS, (name,), [float(fds)]
    yield families.PROCESS_MAX_FDS, (name,), [float(max_fds)]
