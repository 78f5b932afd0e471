"""How soon the thread of a data loop gets the GIL and a CPU.

Invariants:
- The loop's share of the CPU does not grow; it only gets shorter slices sooner. Where it and a
  thread that works for it are both ready, the loop runs.
- Other processes keep the kernel's defaults. So does everything where the kernel cannot be told
  (another system, another scheduling policy, a container that forbids it).
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
# A loop with a burst in hand has soon had its share of a core, and would wait for each slice of the
# threads that tokenize the burst. With this they have a third of its weight; and short slices, too,
# since one that holds the GIL must not be long without a CPU.
HELPER_NICE = 5
HELPER_SLICE_S = 0.0005

# Linux's sched_setattr(2), which Python has no name for, and glibc only since 2.41.
_SETATTR = {"x86_64": 314, "aarch64": 274}
# size, policy, flags, nice, priority, runtime, deadline, period, utilization from and to
ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_RESET_ON_FORK = 0x01


def take_soon() -> None:
    """Shorten the slices of the calling thread, which runs a loop. Call it before it starts other
    threads."""
    sys.setswitchinterval(GIL_SWITCH_S)
    _ask(CPU_SLICE_S, 0)


def stand_back() -> None:
    """Lower the weight of the calling thread, which works for a loop of its process."""
    _ask(HELPER_SLICE_S, HELPER_NICE)


def _ask(slice_s: float, nicer: int) -> None:
    """Call sched_setattr. The result is ignored, because nothing could be done about a refusal."""
    call = _SETATTR.get(platform.machine())
    if call is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + nicer, 19)
    size_bytes, slice_ns = ATTRIBUTES.size, round(slice_s * 1e9)
    wanted = ATTRIBUTES.pack(
        size_bytes, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, slice_ns, 0, 0, 0, 0
    )
    ctypes.CDLL(None).syscall(call, 0, wanted, 0)
