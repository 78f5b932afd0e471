"""Threads that encode and are replaced before the encoder has cached too much in them.

Invariants:
- fastokens remembers the words of each thread until the thread ends: short ones in a table that
  doubles up to 64 MB, and up to 256,000 or 40 MB of longer ones, in three times their size.
- A thread above its share of LIMIT_CHARS leaves its work to a new one, and what it remembered
  goes back to the kernel.
- The loop's thread cannot be replaced, so its table has its full size before anything is served:
  doubled later it would hold the loop for 5 to 15 ms, and for 130 where the kernel has no clean
  pages at hand.
- Of tokenizers that split nothing it remembers no words (`Encoder.keeps_words`), and no table is
  made.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from string import ascii_lowercase
from typing import Final, TypeVar

from tokenlane.runtime import malloc_arenas

# Characters that the encoder keeps. A new thread begins with a table of its own, which costs 1 to
# 5 ms: a twentieth of the time that so much text takes to encode.
LIMIT_CHARS: Final = 2 * 1024 * 1024
# A thread that was replaced is gone by then, and what it remembered is free.
_GONE_S: Final = 1.0
# More than three quarters of a table's last size but one: it has doubled to its last.
_TABLE_WORDS: Final = 800_000

_Made = TypeVar("_Made")


class _Kept(threading.local):
    chars = 0


_kept = _Kept()


def remember(kept_chars: int) -> None:
    """Note that the encoder keeps so many characters for the calling thread."""
    _kept.chars += kept_chars


def remembered_chars() -> int:
    """Return how many characters the encoder keeps for the calling thread."""
    return _kept.chars


def fill_table(encode: Callable[[str], object]) -> None:
    """Make the calling thread's table as large as it gets; takes 0.3 s. encode: by fastokens."""
    letters = (ascii_lowercase,) * 5
    encode(" ".join(map("".join, islice(product(*letters), _TABLE_WORDS))))


def give_back_soon(loop: asyncio.AbstractEventLoop) -> None:
    """Return to the kernel what the calling thread, which ends, remembered: up to 100 MB, in
    pieces between others. Safe to call in any thread."""

    def give_back() -> None:
        with contextlib.suppress(RuntimeError):  # the loop ends
            loop.run_in_executor(None, malloc_arenas.trim)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(loop.call_later, _GONE_S, give_back)


class EncoderExecutor:
    """Threads for work outside the ladder, whose callers wait for the result."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._executor = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        """Return what the work makes in one of the threads. Raises as it does."""
        executor, chars, loop = self._executor, 0, asyncio.get_running_loop()

        def counted() -> _Made:
            nonlocal chars
            try:
                return work()
            finally:
                chars = remembered_chars()

        try:
            return await loop.run_in_executor(executor, counted)
        finally:
            # These threads are few, so the ladder's threads get most of the limit.
            if chars > LIMIT_CHARS // 4 and executor is self._executor:
                self._executor = ThreadPoolExecutor(self._count, self._name)
                executor.shutdown(wait=False)
                give_back_soon(loop)
