"""Rates and progress, as told by first tokens alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.routing.lease import Lease, LocalBoard
from tokenlane.routing.progress import Progress


def prefilled(progress: Progress, slot: int, rate: float, prompts: list[int], now: float) -> float:
    """Prompts sent at once and computed one after the other; when the last is done."""
    tickets = [(progress.sent(slot, tokens, now), tokens) for tokens in prompts]
    for ticket, tokens in tickets:
        now += tokens / rate
        progress.answered(slot, ticket, now)
    return now


def test_nothing_is_known_before_enough_was_seen() -> None:
    progress = Progress()
    now = prefilled(progress, 0, 1000.0, [3000] * 3, 0.0)
    assert progress.rate(0) == 0.0
    progress.sent(0, 5000, now)
    assert progress.left([0, 1], [5000, 700], now + 1) == [5000, 700]


@given(
    st.lists(st.integers(1, 30_000), min_size=1, max_size=40).filter(lambda p: sum(p) > 20_000),
    st.floats(100, 100_000),
)
def test_a_backlog_tells_the_rate_exactly(prompts: list[int], rate: float) -> None:
    progress = Progress()
    prefilled(progress, 0, rate, [*prompts, 20_000], 5.0)
    assert progress.rate(0) == pytest.approx(rate)


def test_prompts_of_one_batch_add_up() -> None:
    progress = Progress()
    for at in range(20):
        tickets = [progress.sent(0, 1000, float(at)) for _ in range(4)]
        for ticket in tickets:
            progress.answered(0, ticket, at + 0.5)
    assert progress.rate(0) == pytest.approx(8000, rel=0.03)  # the fading past ends in a batch


def test_only_the_first_prompt_progresses_and_never_beyond_its_end() -> None:
    progress = Progress()
    now = prefilled(progress, 0, 1000.0, [8000, 8000], 0.0)
    first = progress.sent(0, 4000, now)
    progress.sent(0, 6000, now)
    assert progress.left([0], [10_000], now + 1) == [9000]
    assert progress.left([0], [10_000], now + 9) == [6000]
    assert progress.left([0], [3000], now + 9) == [0]  # the counts are the others' too
    progress.answered(0, first, now + 4)
    assert progress.left([0], [6000], now + 5) == [5000]
    assert progress.left([0], [6000], now) == [6000]  # a clock that lags invents nothing


def test_those_that_ended_without_a_first_token_hold_nobody_up() -> None:
    progress, board = Progress(), LocalBoard()
    now = prefilled(progress, 0, 1000.0, [8000, 8000], 0.0)
    with pytest.raises(ValueError, match="gone"), Lease(board, 0, 500, progress=progress, now=now):
        raise ValueError("gone")
    with Lease(board, 0, 4000, progress=progress, now=now) as lease:
        assert progress.left([0], [4000], now + 1) == [3000]
        lease.first_byte(now + 4)
        assert progress.left([0], [1000], now + 5) == [1000]
    assert progress.rate(0) == pytest.approx(1000)


def test_slowness_is_told_once_replicas_differ() -> None:
    alike, differ = Progress(), Progress()
    for slot in range(2):
        prefilled(alike, slot, 1000.0 + 100 * slot, [5000] * 16, 0.0)
        prefilled(differ, slot, 1000.0 + 2000 * slot, [5000] * 16, 0.0)
    assert list(alike.slowness([0, 1])) == []
    assert differ.slowness([1, 0, 7]) == pytest.approx([2 / 3, 2.0, 1.0])
    differ.remove(0)
    assert list(differ.slowness([0, 1])) == []
    assert differ.rate(0) == 0.0


def test_slowness_is_among_those_that_may_take_the_request() -> None:
    """Replicas of a large model are no measure for those of a small one."""
    progress = Progress()
    for slot, rate in enumerate((4000.0, 4200.0, 40_000.0, 20_000.0)):
        prefilled(progress, slot, rate, [5000] * 16, 0.0)
    assert list(progress.slowness([0, 1])) == []
    assert progress.slowness([2, 3]) == pytest.approx([0.75, 1.5])
    assert progress.slowness([3, 7, 2]) == pytest.approx([1.5, 1.0, 0.75])
    assert list(progress.slowness([3])) == list(progress.slowness([7])) == []


def test_one_that_was_slow_is_given_another_chance_after_a_while() -> None:
    """It is avoided, so that hardly anything is heard of it."""
    progress, now = Progress(), 0.0
    for slot, rate in enumerate((1000.0, 10_000.0, 10_000.0)):
        now = prefilled(progress, slot, rate, [5000] * 16, now)
    assert progress.slowness([0, 1, 2]) == pytest.approx([7.0, 0.7, 0.7])
    for slots, seconds in (((1, 2), 180.0), ((0, 1, 2), 120.0)):
        ends = now + seconds
        while now < ends:
            for slot in slots:
                now = prefilled(progress, slot, 10_000.0, [5000] * 4, now)
        assert list(progress.slowness([0, 1, 2])) == []
        assert (progress.rate(0) == 0.0) == (0 not in slots), "unknown until it is heard of"


def test_nothing_is_forgotten_in_quiet_hours_while_all_are_alike() -> None:
    progress, now = Progress(), 0.0
    for _ in range(10):
        for slot in range(2):
            now = prefilled(progress, slot, 5000.0, [5000] * 8, now)
        now += 3600.0
    assert progress.rate(0) == pytest.approx(5000.0)
