"""Bodies read off the loop where that takes long.

Invariants:
- One long body at a time: a reader holds the GIL, and the loop has its turn after each.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from tokenlane.protocols.bodies import Body, Kind, inspect
from tokenlane.telemetry.stalls.stages import AWAITING, INSPECT

# Up to 3 ns a byte, where it is nothing but brackets or keys.
LONG_BODY_BYTES: Final = 1024 * 1024

_Read = TypeVar("_Read")
_thread = ThreadPoolExecutor(1, "inspect")


async def inspected(kind: Kind, body: bytes) -> Body:
    """As `inspect` reads it."""
    return await read(lambda long: inspect(kind, long), body)


async def read(reader: Callable[[bytes], _Read], body: bytes) -> _Read:
    """What the reader makes of a body, here or beside the loop. Raises as it does."""
    if len(body) <= LONG_BODY_BYTES:
        return reader(body)
    with AWAITING[INSPECT]:
        return await asyncio.get_running_loop().run_in_executor(_thread, reader, body)
