"""Waiting for room on the ladder: in order, and no wake is lost."""

import asyncio

import pytest

from tests.raw import until
from tokenlane.tokens.rungs.waiters import Waiters


async def test_first_come_first_served_and_again_at_the_head() -> None:
    room = Waiters()
    order: list[str] = []

    async def one(name: str, *, again: bool = False) -> None:
        assert await room.wait(60.0, again=again)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name, again in (("a", False), ("b", False), ("woken before", True)):
            group.create_task(one(name, again=again))
        await until(lambda: len(room.waiting) == 3)
        for _ in range(3):
            room.made()
    assert order == ["woken before", "a", "b"]
    room.made()  # nobody waits


async def test_time_runs_out() -> None:
    room = Waiters()
    assert not await room.wait(0.001)
    assert len(room.waiting) == 0


async def test_who_leaves_when_woken_wakes_the_next() -> None:
    room = Waiters()
    first = asyncio.get_running_loop().create_task(room.wait(60.0))
    second = asyncio.get_running_loop().create_task(room.wait(60.0))
    await until(lambda: len(room.waiting) == 2)
    room.made()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second


async def test_who_leaves_before_is_forgotten() -> None:
    room = Waiters()
    waiting = asyncio.get_running_loop().create_task(room.wait(60.0))
    await until(lambda: len(room.waiting) == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(room.waiting) == 0
