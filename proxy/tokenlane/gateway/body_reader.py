"""Long bodies are read off the loop.

Invariants:
- One long body at a time: a reader holds the GIL, and the loop has its turn after each.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tokenlane.telemetry.stalls.stages import AWAITING, INSPECT

# Up to 3 ns a byte, where it is nothing but brackets or keys.
LONG_BODY_BYTES: Final = 1024 * 1024

_Read = TypeVar("_Read")
_thread = ThreadPoolExecutor(1, "inspect")


async def beside_loop(read: Callable[[], _Read]) -> _Read:
    """Run a reader of a long body in a thread and return its result. Raise what it raises."""
    with AWAITING[INSPECT]:
        return await asyncio.get_running_loop().run_in_executor(_thread, read)
