"""Waiting for one thing unless another comes first."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any


async def set_within(event: asyncio.Event, limit_s: float | None) -> bool:
    """Wait for an event, at most so long. Return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


async def unless(
    stop: asyncio.Event, wanted: Awaitable[Any], deadline_s: float | None = None
) -> bool:
    """Waits for `wanted` and raises what it raises; False if `stop` or the deadline was first."""
    loop = asyncio.get_running_loop()

    async def goal() -> None:
        await wanted

    tasks = loop.create_task(goal()), loop.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reached = tasks[0].done()
        for task in tasks:
            task.cancel()
    if reached:
        tasks[0].result()
    return reached
