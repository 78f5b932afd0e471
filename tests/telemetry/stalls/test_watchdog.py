"""The watchdog outlives a look that fails, and reads stacks for what they are."""

import asyncio
import sys
import time
from types import FrameType
from typing import cast

import pytest
import uvloop

from tokenlane.telemetry.stalls.heartbeat import Heartbeat
from tokenlane.telemetry.stalls.watchdog import Requests, Stack, Watchdog, stack_of


def test_a_stack_is_read_from_inside_out() -> None:
    first, second, *_ = Stack(sys._getframe())
    assert first.endswith("test_a_stack_is_read_from_inside_out")
    assert "test_a_stack_is_read" not in second


def test_no_thread_has_no_stack() -> None:
    assert not stack_of(0)


def test_what_is_no_frame_ends_a_stack() -> None:
    assert not Stack(None)
    assert not Stack(cast(FrameType, lambda: None))


def test_a_look_that_fails_is_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Requests:
        raise ZeroDivisionError

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        heart = Heartbeat(lambda _: None, period_s=0.002)
        dog = Watchdog(heart, broken)
        dog.start()
        heart.start()
        while len(caplog.records) < 2:  # late twice, looked at twice
            loop.call_soon(time.sleep, 0.02)
            await asyncio.sleep(0.01)
        cpu_s = dog.cpu_s()
        heart.stop()
        dog.stop()
        heart.close()
        return cpu_s

    assert uvloop.run(scenario()) > 0.0
    messages = {record.message for record in caplog.records}
    assert messages == {"the watchdog could not sample the loop"}
