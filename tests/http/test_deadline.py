"""Deadlines: they fire once, when they are due, and not before."""

import asyncio
import time

from tokenlane.http.deadline import Deadline


class Owner:
    def __init__(self) -> None:
        self.fired_s: list[float] = []
        self.fired = asyncio.Event()
        self.deadline = Deadline(asyncio.get_running_loop(), self.late)

    def late(self) -> None:
        self.fired_s.append(time.monotonic())
        self.fired.set()


async def test_it_fires_once_when_due() -> None:
    owner = Owner()
    due_s = time.monotonic() + 0.02
    owner.deadline.set(0.02)
    await owner.fired.wait()
    await asyncio.sleep(0.03)
    assert len(owner.fired_s) == 1
    assert owner.fired_s[0] >= due_s - 0.002


async def test_an_earlier_one_replaces_a_later_one() -> None:
    owner = Owner()
    owner.deadline.set(60.0)
    owner.deadline.set(0.005)
    await asyncio.wait_for(owner.fired.wait(), 1.5)


async def test_a_later_one_replaces_an_earlier_one() -> None:
    owner = Owner()
    owner.deadline.set(0.005)
    due_s = time.monotonic() + 0.04
    owner.deadline.set(0.04)
    await owner.fired.wait()
    assert owner.fired_s[0] >= due_s - 0.002


async def test_cleared_it_does_not_fire() -> None:
    owner = Owner()
    owner.deadline.set(0.005)
    owner.deadline.clear()
    await asyncio.sleep(0.02)
    assert not owner.fired_s
    owner.deadline.set(0.005)
    await owner.fired.wait()


async def test_setting_it_again_arms_no_new_timer() -> None:
    owner = Owner()
    owner.deadline.set(10.0)
    timer = owner.deadline._handle
    for delay_s in (10.0, 20.0, 30.0):
        owner.deadline.clear()
        owner.deadline.set(delay_s)
        assert owner.deadline._handle is timer
    owner.deadline.close()
    assert owner.deadline._handle is None


async def test_closed_it_lets_go() -> None:
    owner = Owner()
    owner.deadline.set(0.005)
    owner.deadline.close()
    owner.deadline.close()
    await asyncio.sleep(0.02)
    assert not owner.fired_s
