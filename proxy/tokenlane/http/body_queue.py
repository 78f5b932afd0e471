"""Single file: of what came at once, one goes on in each turn of the loop.

Long bodies that come side by side are complete in the same turn. To join one of 390 KB and to read
its JSON takes 0.1 ms, before anything else is done with it: twenty would be a turn of 2 ms and
more, and everybody else would wait for its end.
"""

import asyncio
from collections import deque


class SingleFile:
    """Those who wait, in the order in which they came."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def let(self, waiter: asyncio.Future[None]) -> None:
        """Sets its result when its turn comes; one that is done by then takes no turn."""
        if not self._waiting:
            self._loop.call_soon(self._next)
        self._waiting.append(waiter)

    def _next(self) -> None:
        waiter = self._waiting.popleft()
        while waiter.done() and self._waiting:
            waiter = self._waiting.popleft()
        if not waiter.done():
            waiter.set_result(None)
        if self._waiting:
            self._loop.call_soon(self._next)
