"""One heap for all threads of a process whose threads handle long texts, and a collector that
leaves alone what lives as long as the process.

glibc gives each thread a heap of its own, and such a heap grows by a system call for every page or
two, which all threads wait for that meet a page fault meanwhile. A tokenizer thread that renders
half a megabyte spent half of the next turn of a long conversation on that. The main heap grows in
larger steps, and what one thread freed the next one uses. Threads wait little for one another
there: small objects are Python's own, and each thread has a stock of small blocks.

Invariant: where the C library is another, nothing is changed.
"""

import ctypes
import gc

# mallopt(3); of all its parameters the one that Python has no name for is this.
_M_ARENA_MAX = -8
# A request makes some thirty objects that the collector tracks and leaves no cycle: looking at
# 700 of them at a time, Python's default, costs 4 % of a request. A pass over these takes 0.1 ms.
_YOUNG_OBJECTS = 10_000


def use_one_arena() -> None:
    """All threads allocate from the main heap. Before they are started: a heap once made stays."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def settle() -> None:
    """Once everything is loaded: the collector need not walk it again, which with a tokenizer or
    two takes all threads 10 ms and more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
