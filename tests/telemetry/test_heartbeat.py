"""The heartbeat sees a loop that is held, and says nothing worth mentioning of one that is not."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from proxy.telemetry.heartbeat import Heartbeat


async def beat(hold_s: float) -> list[float]:
    loop = asyncio.get_running_loop()
    seen: list[float] = []
    enough = loop.create_future()

    def observe(late_s: float) -> None:
        seen.append(late_s)
        if len(seen) == 2 and hold_s:
            loop.call_soon(time.sleep, hold_s)
        if len(seen) == 4:
            enough.set_result(None)

    heart = Heartbeat(observe, period_s=0.002)
    heart.start()
    await enough
    heart.stop()
    assert len(seen) == 4
    return seen


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_held_loop_is_late(
    run: Callable[[Coroutine[Any, Any, list[float]]], list[float]],
) -> None:
    seen = run(beat(0.03))
    assert max(seen) == seen[2]
    # Due 2 ms after the hold began, and uvloop's clock counts whole milliseconds.
    assert seen[2] >= 0.03 - 0.002 - 0.0015
    assert all(late_s >= 0 for late_s in seen)


def test_stop_stops() -> None:
    async def scenario() -> list[float]:
        seen: list[float] = []
        heart = Heartbeat(seen.append, period_s=0.001)
        heart.start()
        heart.stop()
        heart.stop()
        await asyncio.sleep(0.005)
        return seen

    assert asyncio.run(scenario()) == []
