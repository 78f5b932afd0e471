"""Turns of the loop, for work that would be too much for one: first in, first out, one in each.

Peers choose how much work their bytes are. One read of 256 KB may be a piece of a body or 40 000
chunks, and twenty long bodies may be complete at once, each 0.1 ms of JSON: whatever is more than a
callback should do goes on in turns of its own, and all others run between them.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class TurnQueue:
    """Calls that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, call: Callable[[], object]) -> None:
        """Call it when its turn comes, from a fresh stack."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(call)

    def _next(self) -> None:
        call = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        call()
