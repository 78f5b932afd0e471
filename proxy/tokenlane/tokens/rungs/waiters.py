"""Requests that wait for a full ladder, because they need their ids.

Invariants:
- First come, first served: a waiter that is woken and finds no room waits at the head again.
- A wake is never lost: a waiter that is cancelled just as it is woken wakes the next.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.stalls.stages import AWAITING, TOKENIZE_LOCAL

T = TypeVar("T")


class Waiters:
    """The waiters of one loop, `waiting` in their order."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, limit_s: float, *, again: bool = False) -> bool:
        """Wait until there may be room. Return False after limit_s. again: it was woken before."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if again:
            self.waiting.appendleft(woken)
        else:
            self.waiting.append(woken)
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

    async def attempt(
        self, once: Callable[[], Awaitable[T]], limit_s: float, is_done: Callable[[T], bool]
    ) -> tuple[T, float] | None:
        """Return what an attempt gives that is done, made whenever there may be room, and how many
        seconds it waited for that; None after limit_s."""
        began_s = monotonic()
        again = False
        while True:
            left_s = began_s + limit_s - monotonic()
            with AWAITING[TOKENIZE_LOCAL]:
                roomy = left_s > 0.0 and await self.wait(left_s, again=again)
            if not roomy:
                return None
            waited_s = monotonic() - began_s
            made = await once()
            if is_done(made):
                return made, waited_s
            again = True

    def made(self) -> None:
        """Wake the first waiter, because a job is done."""
        while self.waiting:
            woken = self.waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def _left(self, woken: "asyncio.Future[None]") -> None:
        if woken in self.waiting:
            self.waiting.remove(woken)
        elif not woken.cancelled():
            self.made()
