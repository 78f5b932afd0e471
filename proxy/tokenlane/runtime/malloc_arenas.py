"""One malloc arena for all threads of a process that handles long texts, and a garbage collector
that skips objects which live as long as the process.

glibc gives each thread a heap of its own, and such a heap grows by a system call for every page or
two, which all threads wait for that meet a page fault meanwhile. A tokenizer thread that renders
half a megabyte spent half of the next turn of a long conversation on that. The main heap grows in
larger steps, and what one thread freed the next one uses. Threads wait little for one another
there: small objects are Python's own, and each thread has a stock of small blocks.

Invariant: where the C library is another, nothing is changed.
"""

import asyncio
import ctypes
import gc

# The numbers of mallopt's parameters.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Longer blocks are mapped separately and returned to the kernel when they are freed. By itself
# glibc raises this to the longest block ever freed, up to 32 MB: one such body, and every later one
# leaves holes in the heap, which small blocks that stay settle in. Bodies of long conversations
# are shorter: each mapping costs a page fault for every 4 KB.
_OWN_PAGES_BYTES = 1024 * 1024
# A heap that shrinks by less would grow again at once.
_TRIM_BYTES = 8 * 1024 * 1024
# A request makes some thirty objects that the collector tracks and leaves no cycle: looking at
# 700 of them at a time, Python's default, costs 4 % of a request. A pass over these takes 0.1 ms.
_YOUNG_OBJECTS = 10_000
# What is trimmed is used again at once by a process that is busy, a page fault for each page.
TRIM_PERIOD_S = 60.0


def use_one_arena() -> None:
    """Make all threads allocate from the main heap, except for long blocks, which go back to the
    kernel. Call it before threads start, since an arena once made stays."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def trim() -> None:
    """Give the kernel back what is free anywhere in the heap. glibc itself returns the end alone:
    one small block keeps all that lies before it. Takes 1 ms, and 0.13 ms for each megabyte
    given back: call it in a thread; those that allocate meanwhile wait."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


async def trim_regularly(period_s: float = TRIM_PERIOD_S) -> None:
    """Trim in a thread until cancelled: what was needed for some seconds is given back."""
    while True:
        await asyncio.sleep(period_s)
        await asyncio.to_thread(trim)


def settle() -> None:
    """Freeze what is loaded and trim the heap. The garbage collector need not walk it again, which
    with a tokenizer or two stops all threads for 10 ms and more; and the kernel gets back what only
    loading needed, with a large tokenizer 120 MB."""
    gc.collect()
    trim()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
