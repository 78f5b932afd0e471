"""An alarm whose deadline moves without waking anybody: a Linux timerfd.

A loop that is well pushes the deadline before it passes, at the price of one system call, and the
thread that waits for it sleeps on. (`threading` has nothing of this kind: there a moved deadline
wakes the one who waits.)

Invariants:
- Setting it keeps the GIL: a loop that gave it up here could wait a long time to get it back.
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
    """One alarm: set by one thread, waited for by another. OSError where there are no timerfds."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None, use_errno=True)
        self._descriptor: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "no timerfd")
        self._settime = libc.timerfd_settime
        self._settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._deadline = _Deadline()
        self._address = ctypes.addressof(self._deadline)

    def set(self, delay_s: float) -> None:
        """Goes off in `delay_s` seconds (> 0) and not when it would have before."""
        ns = max(1, int(delay_s * _NS_PER_S))
        self._deadline.s, self._deadline.ns = divmod(ns, _NS_PER_S)
        self._settime(self._descriptor, 0, self._address, None)

    def wait(self) -> None:
        """Returns when it goes off, without holding the GIL."""
        os.read(self._descriptor, _COUNT_BYTES)

    def close(self) -> None:
        """Gives the descriptor back; nobody may be waiting."""
        os.close(self._descriptor)
