"""The heartbeat sees a loop that is held, and says nothing worth mentioning of one that is not."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tokenlane.telemetry.stalls.heartbeat import Heartbeat, Late
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, PARSE

HOLD_S = 0.03


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
    heart.close()
    assert len(seen) == 4
    return seen


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_held_loop_is_late(
    run: Callable[[Coroutine[Any, Any, list[float]]], list[float]],
) -> None:
    seen = run(beat(HOLD_S))
    # Due some milliseconds after the hold began.
    assert seen[2] >= HOLD_S - 3 * 0.002 - 0.0005
    assert all(late_s >= 0 for late_s in seen)


def test_stop_stops() -> None:
    async def scenario() -> list[float]:
        seen: list[float] = []
        heart = Heartbeat(seen.append, period_s=0.001)
        heart.start()
        heart.stop()
        heart.stop()
        await asyncio.sleep(0.005)
        heart.close()
        return seen

    assert asyncio.run(scenario()) == []


async def idle(heart: Heartbeat) -> None:
    """Until the heart has found that nothing happens."""
    while not heart.idle:  # noqa: ASYNC110 - only timers pass: that is what it is to be idle
        await asyncio.sleep(0.005)


async def test_an_idle_loop_beats_seldom_and_is_measured_from_its_first_mark() -> None:
    loop = asyncio.get_running_loop()
    lates: list[Late] = []
    told = asyncio.Event()

    def late(one: Late) -> None:
        lates.append(one)
        told.set()

    # A timer that would not notice: only the mark makes the loop's next turn a beat.
    heart = Heartbeat(lambda _: None, late, period_s=0.002, idle_period_s=30.0)
    heart.start()
    try:
        await asyncio.wait_for(idle(heart), 10)
        beats = heart.count
        lates.clear()
        told.clear()

        def work() -> None:
            LOOP.mark(PARSE)
            time.sleep(HOLD_S)
            LOOP.mark(OTHER)

        loop.call_soon(work)
        await asyncio.wait_for(told.wait(), 10)
        assert heart.count == beats + 1
        [one] = lates
        assert one.after.at_s - one.due_s >= HOLD_S
        assert one.beat == beats
    finally:
        heart.stop()
        heart.close()


async def turn(work: Callable[[], object]) -> None:
    """Lets the loop do this in a turn of its own, and beat."""
    loop = asyncio.get_running_loop()
    loop.call_soon(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_working_loop_beats_where_it_is_awake_anyway() -> None:
    lates: list[Late] = []
    # No timer comes in time: its period is minutes.
    heart = Heartbeat(lambda _: None, lates.append, period_s=60.0)
    heart.start()
    try:

        def work(hold_s: float) -> None:
            LOOP.mark(PARSE)
            time.sleep(hold_s)
            LOOP.mark(OTHER)

        await turn(lambda: work(HOLD_S))
        assert heart.count == 0  # it is not yet time
        heart.period_s = 0.0
        heart._listen(time.monotonic())
        await turn(lambda: work(HOLD_S))
        assert heart.count == 1
        [late] = lates
        assert HOLD_S <= late.after.at_s - late.due_s < heart.work_period_s
        assert late.beat == 0
        heart._listen(time.monotonic())
        await turn(lambda: work(0.0))
        assert heart.count == 2
        assert all(one.due_s >= late.after.at_s for one in lates[1:])  # no stall is told twice
    finally:
        heart.stop()
        heart.close()


async def test_work_makes_an_idle_loop_beat_as_usual_again() -> None:
    heart = Heartbeat(lambda _: None, period_s=0.002, idle_period_s=0.02)
    heart.start()
    try:
        await asyncio.wait_for(idle(heart), 10)

        async def work() -> None:
            while heart.idle:
                until_s = time.monotonic() + 0.001
                while time.monotonic() < until_s:
                    pass
                await asyncio.sleep(0)

        await asyncio.wait_for(work(), 10)
    finally:
        heart.stop()
        heart.close()


async def test_what_held_the_loop_before_its_first_mark_is_seen() -> None:
    loop = asyncio.get_running_loop()
    lates: list[Late] = []
    done = asyncio.Event()
    heart = Heartbeat(lambda _: None, lates.append, period_s=0.001)
    heart.start()
    reading, writing = os.pipe()

    def work() -> None:
        # As where another thread holds the GIL: the timer goes off meanwhile.
        os.read(reading, 1)
        time.sleep(HOLD_S)
        LOOP.mark(PARSE)
        LOOP.mark(OTHER)
        loop.call_soon(done.set)

    loop.add_reader(reading, work)
    try:
        await asyncio.sleep(0.02)
        lates.clear()
        os.write(writing, b"!")
        await asyncio.wait_for(done.wait(), 10)
        assert sum(one.after.at_s - one.due_s for one in lates) >= HOLD_S - 0.003 - 0.0005
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)
        heart.stop()
        heart.close()
