"""How soon the thread of a data loop gets its turn: at the GIL, and at a CPU.

Invariants:
- The loop takes no larger share than before, only smaller portions sooner.
- Threads and processes that it starts have the kernel's usual portions; so have all where the
  kernel is told nothing (another system, another scheduling policy, a container that forbids it).
"""

import ctypes
import os
import platform
import struct
import sys

# A thread that holds the GIL gives it up after this long when the loop asks: rendering and
# hashing in the tokenizer threads must not make the loop wait Python's default of 5 ms.
GIL_SWITCH_S = 0.0005
# Linux runs whose slice ends first (6.12 and newer; older ones take no notice). With the usual 1.4
# to 3 ms for all, a loop that wakes waits for a tokenizer thread's slice to end. None is shorter.
CPU_SLICE_S = 0.0001

# Linux's sched_setattr(2), which Python has no name for, and glibc only since 2.41.
_SETATTR = {"x86_64": 314, "aarch64": 274}
# size, policy, flags, nice, priority, runtime, deadline, period, utilization from and to
ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_RESET_ON_FORK = 0x01


def take_soon() -> None:
    """For the calling thread, that of a loop, before it starts others."""
    sys.setswitchinterval(GIL_SWITCH_S)
    call = _SETATTR.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    size_bytes, slice_ns = ATTRIBUTES.size, round(CPU_SLICE_S * 1e9)
    wanted = ATTRIBUTES.pack(
        size_bytes, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, slice_ns, 0, 0, 0, 0
    )
    # What it returns says whether it was allowed, and nothing would be done about that.
    ctypes.CDLL(None).syscall(call, 0, wanted, 0)
