"""Threads that encode and are replaced before the encoder has cached too much in them.

Invariants:
- fastokens remembers the words of each thread until the thread ends: up to a million of them,
  whatever their length. Long words that are all different take three times their size.
- A thread above its share of LIMIT_CHARS leaves its work to a new one.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

# Characters encoded in long words. A new thread has an empty cache, which costs some 5 ms: a
# twentieth of the time that so much of such text takes to encode.
LIMIT_CHARS: Final = 2 * 1024 * 1024

_Made = TypeVar("_Made")


class _Encoded(threading.local):
    long_words_chars = 0


_ENCODED = _Encoded()


def remember(long_words_chars: int) -> None:
    """Note that the calling thread has encoded so many characters in long words."""
    _ENCODED.long_words_chars += long_words_chars


def remembered_chars() -> int:
    """Return how many characters the calling thread has encoded in long words."""
    return _ENCODED.long_words_chars


class EncoderExecutor:
    """Threads for work outside the ladder, whose callers wait for the result."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._executor = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        """Return what the work makes in one of the threads. Raises as it does."""
        executor, chars = self._executor, 0

        def counted() -> _Made:
            nonlocal chars
            try:
                return work()
            finally:
                chars = remembered_chars()

        try:
            return await asyncio.get_running_loop().run_in_executor(executor, counted)
        finally:
            # These threads are few, so the ladder's threads get most of the limit.
            if chars > LIMIT_CHARS // 4 and executor is self._executor:
                self._executor = ThreadPoolExecutor(self._count, self._name)
                executor.shutdown(wait=False)
