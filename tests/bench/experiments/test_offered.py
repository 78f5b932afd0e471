"""What prompts wait for counts from when they were due."""

import asyncio

import pytest

from bench.experiments.ladder.offered import arrivals


class Clock:
    """Time that passes only as it is told to: asleep, or while a job holds the loop."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds_s: float) -> None:
        self.at_s += seconds_s
        await asyncio.sleep(0)

    async def ask(self, body: bytes) -> None:
        self.at_s += float(body)


async def test_a_loop_that_is_held_keeps_those_waiting_who_are_due_meanwhile() -> None:
    clock = Clock()
    bodies = [b"0.25", b"0", b"0"]  # due at 0, 0.1 and 0.2
    waits = await arrivals(clock.ask, bodies, 0.3, clock.now_s, clock.sleep)
    assert waits == pytest.approx([0.35, 0.25, 0.15])
