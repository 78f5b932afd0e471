"""The longest turn of this loop: what one connection's bytes make all others wait.

tests/held.py judges single callbacks. A turn runs many of them, and libuv reads up to 8 MB of one
socket in it.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.machine import slowness

_LIMIT_S = 0.05


@dataclass
class Turns:
    """count: of turns. longest_s: in CPU time of this thread, which no busy machine makes longer.
    whole_s: of all."""

    count: int = 0
    longest_s: float = 0.0
    whole_s: float = 0.0

    def short(self) -> bool:
        """No turn took 50 ms, or as much longer as this machine is slower."""
        return self.longest_s < _LIMIT_S or self.longest_s < _LIMIT_S * slowness()


@contextlib.asynccontextmanager
async def counted() -> AsyncIterator[Turns]:
    """The turns of this loop in the context. The collector, which walks all that the tests have,
    does not run in it."""
    turns = Turns()
    ended = False

    async def tick() -> None:
        at_s = time.thread_time()
        while not ended:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            turns.count += 1
            turns.whole_s += now_s - at_s
            turns.longest_s = max(turns.longest_s, now_s - at_s)
            at_s = now_s

    gc.collect()
    gc.disable()
    task = asyncio.get_running_loop().create_task(tick())
    try:
        yield turns
    finally:
        gc.enable()
        ended = True
        await task
