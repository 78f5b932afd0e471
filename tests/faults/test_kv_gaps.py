"""KV events that are lost on their way, gone for good, or not sent at all."""

import pytest

from tests.control.kv_events.publisher import BLOCK, Scene, scene, until
from tokenlane.config.settings import KvEventSettings
from tokenlane.fleet_state import Standing
from tokenlane.simulator.kv_publisher import KvPublisher

# Nothing but a gap makes it ask.
PATIENT = KvEventSettings(check_interval_s=600.0, answer_deadline_s=20.0, flush_interval_s=0.0)


def publisher(it: Scene, slot: int = 0) -> KvPublisher:
    made = it.fleet.replicas[slot].publisher
    assert made is not None
    return made


async def follow(it: Scene) -> None:
    """Until the account has heard of its publisher."""
    await it.send(0, [1] * 64)
    await until(lambda: it.equal() and len(it.follower.held(0)) == 4)


async def test_a_gap_is_closed_by_a_replay() -> None:
    async with scene(kv_events=PATIENT, cache_blocks=100) as it:
        await follow(it)
        publisher(it).lose = 5
        for name in range(2, 30):
            await it.send(0, [name] * 160)
        await until(it.equal)
        (account,) = it.kv.accounts
        assert account.gaps >= 1
        assert account.lost_messages == 0
        assert it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE


async def test_the_last_message_lost_is_found_by_asking() -> None:
    async with scene() as it:
        await follow(it)
        publisher(it).lose = 1
        await it.send(0, [2] * 64)
        await until(it.equal)


async def test_a_gap_that_no_replay_closes_leaves_a_partial_account() -> None:
    async with scene(kv_events=PATIENT) as it:
        await follow(it)
        publisher(it).lose = 3
        for name in (2, 3, 4):
            await it.send(0, [name] * 64)
        publisher(it).kept.clear()
        await it.send(0, [5] * 64)
        (account,) = it.kv.accounts
        await until(lambda: it.follower.truth.standing(0, BLOCK) is Standing.PARTIAL)
        assert (account.lost_messages, len(it.follower.held(0))) == (3, 4)
        it.fleet.replicas[0].drive.clear_cache()  # now all is known again
        await it.send(0, [6] * 64)
        await until(it.equal)
        assert it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE


@pytest.mark.slow
async def test_a_replay_that_breaks_off_is_asked_on() -> None:
    async with scene() as it:
        it.states[0] = it.states[0].__class__(id="x", slot=0, url=it.states[0].url)
        publisher(it).answer_limit = 6
        for name in range(1, 11):
            await it.send(0, [name] * 64)
        it.change(0, up=True, models=("demo",), block_tokens=BLOCK)
        await until(lambda: it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE)
        assert it.equal()
        assert len(it.follower.held(0)) == 40
        (account,) = it.kv.accounts
        assert account.lost_messages == 0


@pytest.mark.slow
async def test_a_silent_publisher_is_not_believed_until_it_is_back() -> None:
    async with scene() as it:
        await follow(it)
        publisher(it).silent = True
        await it.send(0, [2] * 64)
        await until(lambda: it.follower.truth.standing(0, BLOCK) is Standing.NONE)
        publisher(it).silent = False
        await until(lambda: it.follower.truth.standing(0, BLOCK) is Standing.COMPLETE)
        await until(it.equal)
        assert len(it.follower.held(0)) == 8


async def test_a_publisher_that_starts_again_begins_anew() -> None:
    async with scene() as it:
        await follow(it)
        replica = it.fleet.replicas[0]
        await publisher(it).stop()
        publisher(it).start()
        replica.drive.clear_cache()
        await it.send(0, [2] * 64)
        await until(it.equal)
        assert len(it.follower.held(0)) == 4
