"""Kernel timers whose deadline moves without waking anybody: Linux timerfds.

A healthy loop moves the deadline before it passes, at the cost of one system call, and the waiting
thread sleeps on. (`threading` has nothing of this kind: there a moved deadline wakes the one who
waits.) A loop that listens to one that repeats sets no timer of its own, and knows when it was due
to the microsecond.

Invariants:
- Setting one keeps the GIL: a loop that gave it up here could wait a long time to get it back.
"""

import ctypes
import os

_CLOCK_MONOTONIC = 1
_NS_PER_S = 1_000_000_000
_COUNT_BYTES = 8


class _Deadline(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("s", ctypes.c_long),
        ("ns", ctypes.c_long),
    )


class Alarm:
    """One timer: set by one thread, waited for by the same or another. OSError where there are no
    timerfds. blocks: whether `wait` does."""

    def __init__(self, *, blocks: bool = True) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        flags = os.O_CLOEXEC if blocks else os.O_CLOEXEC | os.O_NONBLOCK
        self.descriptor: int = libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "no timerfd")
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._deadline = _Deadline()
        self._address = ctypes.addressof(self._deadline)

    def set(self, delay_s: float) -> None:
        """Fire in `delay_s` seconds (> 0), and not at the earlier deadline."""
        ns = max(1, int(delay_s * _NS_PER_S))
        self._deadline.s, self._deadline.ns = divmod(ns, _NS_PER_S)
        self._settime(self.descriptor, 0, self._address, None)

    def repeat(self, period_s: float) -> None:
        """As set, and again after each `period_s`."""
        interval = divmod(int(period_s * _NS_PER_S), _NS_PER_S)
        self._deadline.interval_s, self._deadline.interval_ns = interval
        self.set(period_s)

    def wait(self) -> int:
        """Return how often it fired since the last call. Waits, without holding the GIL, until it
        did; 0 at once where it does not block."""
        try:
            return int.from_bytes(os.read(self.descriptor, _COUNT_BYTES), "little")
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the descriptor; no thread may be waiting."""
        os.close(self.descriptor)
