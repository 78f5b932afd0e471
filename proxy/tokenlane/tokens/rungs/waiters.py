"""Those who wait until the ladder may take one more job: it is full, and they need their ids.

Invariants:
- First come, first served: who is woken and finds the room gone waits at the head again.
- A wake is never lost: who leaves just as it is woken wakes the next.
"""

import asyncio
from collections import deque


class Waiters:
    """Waiters of one loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, limit_s: float, *, again: bool = False) -> bool:
        """Until there may be room; False after limit_s. again: it was woken before."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self._waiting.appendleft(woken)
        else:
            self._waiting.append(woken)
        try:
            async with asyncio.timeout(limit_s):
                await woken
        except TimeoutError:
            self._left(woken)
            return False
        except asyncio.CancelledError:
            self._left(woken)
            raise
        return True

    def made(self) -> None:
        """A job is done."""
        while self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _left(self, woken: "asyncio.Future[None]") -> None:
        if woken in self._waiting:
            self._waiting.remove(woken)
        elif not woken.cancelled():
            self.made()
