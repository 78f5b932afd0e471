"""What steps aside between two stages lets others do the first one before it goes on."""

import asyncio

import pytest

from tokenlane.runtime.cohorts import step_aside


async def test_those_at_the_same_stage_run_it_one_behind_the_other() -> None:
    done: list[str] = []

    async def request(name: str) -> None:
        for stage in ("reads", "routes", "sends"):
            done.append(f"{name} {stage}")
            await step_aside()

    await asyncio.gather(*(request(name) for name in "abc"))
    assert done == [f"{name} {stage}" for stage in ("reads", "routes", "sends") for name in "abc"]


async def test_who_steps_aside_may_be_cancelled_there() -> None:
    after = False

    async def request() -> None:
        nonlocal after
        await step_aside()
        after = True

    task = asyncio.get_running_loop().create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not after
