"""The engine by tables, and against a model that recomputes everything from the results."""

import itertools
import math
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenlane.simulator.engine import Engine, Sequence, SequencePhase
from tokenlane.simulator.prefix_cache import chain
from tokenlane.simulator.profile import SimulatorSettings


def sequence(
    values: list[int], output_tokens: int = 1, *, width: int = 1, **fields: Any
) -> Sequence:
    blocks = chain(array("I", values).tobytes(), width)
    return Sequence(len(values), blocks, output_tokens, **fields)


def engine(**fields: Any) -> Engine:
    return Engine(SimulatorSettings(block_tokens=1, **fields))


def test_everything_instant_ends_with_submit() -> None:
    instant = engine()
    one = sequence([1, 2, 3], 5)
    assert instant.submit(one, 1.0) == [one]
    assert (one.phase, one.produced, one.finish, one.ended_s) == (
        SequencePhase.DONE,
        5,
        "length",
        1.0,
    )
    assert (instant.running, instant.waiting, instant.next_event_s) == (0, 0, None)


def test_prefills_follow_each_other_and_tokens_come_at_their_interval() -> None:
    slow = engine(prefill_tokens_per_s=10.0, token_interval_s=0.25)
    first, second = sequence([1] * 20, 3, every_token=True), sequence([2] * 10, 1)
    slow.submit(first, 0.0)
    slow.submit(second, 0.0)
    assert (slow.running, slow.waiting, slow.next_event_s) == (1, 1, 2.0)
    assert slow.advance(1.99) == []
    assert slow.advance(2.0) == [first]
    assert (first.produced, slow.running, slow.waiting) == (1, 2, 0)
    assert slow.advance(2.25) == [first]
    assert slow.advance(2.5) == [first]
    assert (first.done, first.produced, first.ended_s) == (True, 3, 2.5)
    assert slow.advance(9.0) == [second]
    assert (second.first_token_s, second.ended_s) == (3.0, 3.0)


def test_a_late_caller_shifts_nothing() -> None:
    late = engine(prefill_tokens_per_s=10.0, token_interval_s=0.25)
    sequences = [sequence([one] * 10, 4) for one in range(3)]
    for one in sequences:
        late.submit(one, 0.0)
    late.advance(100.0)
    assert [one.first_token_s for one in sequences] == [1.0, 2.0, 3.0]
    assert [one.ended_s for one in sequences] == [1.75, 2.75, 3.75]


def test_only_the_end_is_told_where_no_token_is_asked_for() -> None:
    quiet = engine(token_interval_s=0.5)
    one = sequence([1], 5)
    assert quiet.submit(one, 0.0) == [one]
    assert (one.produced, quiet.next_event_s) == (1, 2.0)
    assert quiet.advance(1.9) == []
    assert quiet.advance(2.0) == [one]


@pytest.mark.parametrize(
    ("prompt_tokens", "cached"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)]
)
def test_the_last_prompt_token_is_always_computed(prompt_tokens: int, cached: int) -> None:
    wide = Engine(SimulatorSettings(block_tokens=16))
    values = list(range(prompt_tokens))
    first, second = sequence(values, width=16), sequence(values, width=16)
    wide.submit(first, 0.0)
    wide.submit(second, 0.0)
    assert (first.cached_tokens, second.cached_tokens) == (0, cached)
    assert first.created_cache_tokens == prompt_tokens // 16 * 16
    assert wide.stats.counts.hit_tokens == cached
    assert wide.stats.counts.queried_tokens == 2 * prompt_tokens


def test_blocks_are_shared_only_after_the_prefill() -> None:
    slow = engine(prefill_tokens_per_s=1.0)
    first, twin, later = sequence([1, 2, 3]), sequence([1, 2, 3]), sequence([1, 2, 3])
    slow.submit(first, 0.0)
    slow.submit(twin, 1.0)
    slow.abort(first, 2.0)
    # Nothing of the aborted prefill is visible: the twin starts from nothing.
    assert (twin.phase, twin.cached_tokens) == (SequencePhase.PREFILL, 0)
    slow.submit(later, 2.0)
    slow.advance(9.0)
    assert (later.cached_tokens, later.first_token_s) == (2, 6.0)


def test_generated_blocks_are_cached_without_the_last_token() -> None:
    option = engine(cache_generated=True)
    whole = [1, 2, 3, 4, 5]
    blocks = chain(array("I", whole).tobytes(), 1)
    option.submit(Sequence(2, blocks[:2], 4, generated_blocks=blocks[2:]), 0.0)
    turn = sequence([*whole, 6, 7])
    option.submit(turn, 0.0)
    assert turn.cached_tokens == 5


def test_running_limit_and_abort_free_a_slot_at_once() -> None:
    narrow = engine(running_limit=1, token_interval_s=1.0)
    first, second, third = (sequence([one], 10) for one in range(3))
    for one in (first, second, third):
        narrow.submit(one, 0.0)
    assert (narrow.running, narrow.waiting) == (1, 2)
    assert narrow.abort(second, 1.0) == [second]
    assert (narrow.running, narrow.waiting) == (1, 1)
    assert narrow.abort(first, 1.5) == [first, third]
    assert (first.finish, third.started_s) == ("abort", 1.5)
    assert narrow.abort(first, 2.0) == []
    narrow.advance(99.0)
    assert (third.finish, third.ended_s) == ("length", 10.5)
    assert narrow.stats.finished == {"length": 1}


def test_front_end_requests_do_not_count_and_can_leave() -> None:
    front = engine()
    gone, stays = sequence([1]), sequence([2])
    front.submit(gone, 0.0, ready_s=1.0)
    front.submit(stays, 0.0, ready_s=2.0)
    assert (front.running, front.waiting, front.next_event_s) == (0, 0, 1.0)
    front.abort(gone, 0.5)
    front.advance(5.0)
    assert (gone.finish, stays.queued_s, stays.done) == ("abort", 2.0, True)


def test_queue_limit_counts_running_and_waiting() -> None:
    limited = engine(running_limit=4, queue_limit=6, token_interval_s=1.0)
    sequences = [sequence([one], 10) for one in range(9)]
    for one in sequences:
        limited.submit(one, 0.0)
    assert (limited.running, limited.waiting, limited.stats.counts.rejected) == (4, 2, 3)
    assert [one.finish for one in sequences[6:]] == ["rejected"] * 3


def test_a_sequence_without_room_holds_up_those_behind_it() -> None:
    small = engine(cache_blocks=10, token_interval_s=1.0)
    running, large, little = sequence([1] * 6, 2), sequence([2] * 6, 2), sequence([3], 2)
    for one in (running, large, little):
        small.submit(one, 0.0)
    assert [one.phase for one in (running, large, little)] == [
        SequencePhase.DECODE,
        SequencePhase.WAITING,
        SequencePhase.WAITING,
    ]
    small.advance(1.0)
    assert (large.phase, little.phase, large.started_s) == (
        SequencePhase.DECODE,
        SequencePhase.DECODE,
        1.0,
    )


def test_a_slow_replica_takes_longer() -> None:
    slow = engine(prefill_tokens_per_s=10.0, token_interval_s=1.0)
    slow.slowness = 3.0
    one = sequence([1] * 10, 2)
    slow.submit(one, 0.0)
    slow.advance(99.0)
    assert (one.first_token_s, one.ended_s) == (3.0, 6.0)


def test_a_long_queue_of_instant_sequences_does_not_nest() -> None:
    deep = engine(running_limit=1, token_interval_s=1.0)
    blocker = sequence([0], 2)
    deep.submit(blocker, 0.0)
    sequences = [sequence([1]) for _ in range(5000)]
    for one in sequences:
        deep.submit(one, 0.0)
    assert deep.waiting == 5000
    deep.advance(1.0)
    assert all(one.done for one in sequences)


WORKLOAD = st.lists(
    st.tuples(
        st.integers(0, 6),  # ticks since the one before
        st.lists(st.integers(0, 1), min_size=1, max_size=12),  # prompt
        st.integers(1, 6),  # answer
        st.booleans(),  # streams
        st.one_of(st.none(), st.integers(0, 30)),  # client leaves so many ticks later
    ),
    min_size=1,
    max_size=25,
)
TICK_S = 0.125
WIDTH = 2
SETTINGS = st.builds(
    lambda blocks, running, prefill, interval: SimulatorSettings(
        block_tokens=WIDTH,
        cache_blocks=blocks,
        running_limit=running,
        prefill_tokens_per_s=prefill,
        token_interval_s=interval,
    ),
    st.sampled_from([None, 9, 14, 40]),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([None, 4.0, 16.0]),
    st.sampled_from([0.0, TICK_S, 3 * TICK_S]),
)


def replay(
    replica: SimulatorSettings, workload: list[Any], every_ticks: int | None
) -> tuple[Engine, list[Sequence]]:
    """Runs a workload, waking the engine every so many ticks, or only when it asks (None)."""
    made = Engine(replica)
    actions: list[tuple[int, int, Sequence]] = []
    sequences = []
    tick = 0
    for gap, values, output_tokens, streams, leaves in workload:
        tick += gap
        one = sequence(values, output_tokens, width=WIDTH, every_token=streams)
        sequences.append(one)
        actions.append((tick, 0, one))
        if leaves is not None:
            actions.append((tick + leaves, 1, one))
    last = tick + 2000
    actions.sort(key=lambda action: action[:2])
    wakes = range(0, last, every_ticks) if every_ticks else ()
    timeline: list[tuple[int, int, Sequence | None]] = sorted(
        [(at, 2, None) for at in wakes] + [(at, kind, one) for at, kind, one in actions],
        key=lambda action: action[0],
    )
    for at, kind, acted in timeline:
        now = at * TICK_S
        if every_ticks is None:
            while (due := made.next_event_s) is not None and due <= now:
                made.advance(due)
                check(made, replica)
        if acted is None:
            if made.next_event_s is None:
                continue
            made.advance(now)
        elif kind == 0:
            made.submit(acted, now)
        else:
            made.abort(acted, now)
        check(made, replica)
    made.advance(last * TICK_S)
    return made, sequences


def check(made: Engine, replica: SimulatorSettings) -> None:
    """What holds at every moment."""
    if replica.cache_blocks is not None:
        assert len(made.cache) <= replica.cache_blocks
    assert made.running <= replica.running_limit
    if made.waiting:
        # Work conservation: whoever waits, waits for a prefill, a slot or blocks.
        assert made.running > 0


def facts(sequences: list[Sequence]) -> list[tuple[Any, ...]]:
    return [
        (one.finish, one.started_s, one.first_token_s, one.ended_s, one.cached_tokens)
        for one in sequences
    ]


@settings(max_examples=60)
@given(SETTINGS, WORKLOAD)
def test_everything_ends_and_nothing_is_left(
    replica: SimulatorSettings, workload: list[Any]
) -> None:
    made, sequences = replay(replica, workload, None)
    assert all(one.done for one in sequences)
    assert (made.running, made.waiting, made.cache.used_blocks) == (0, 0, 0)
    kept = [one for one in sequences if one.finish != "abort"]
    assert all(one.produced == one.output_tokens for one in kept)
    assert made.stats.finished.total() == len(kept)


@settings(max_examples=60)
@given(SETTINGS, WORKLOAD)
def test_starts_are_first_come_first_served_and_prefills_serial(
    replica: SimulatorSettings, workload: list[Any]
) -> None:
    _, sequences = replay(replica, workload, None)
    started = [one for one in sequences if one.first_token_s]
    starts = [one.started_s for one in started]
    assert starts == sorted(starts)
    rate = replica.prefill_tokens_per_s or math.inf
    for one, after in itertools.pairwise(started):
        assert after.started_s >= one.first_token_s
        computed = one.prompt_tokens - one.cached_tokens
        assert one.first_token_s == pytest.approx(one.started_s + computed / rate)


@settings(max_examples=40)
@given(SETTINGS, WORKLOAD, st.sampled_from([1, 3, 50]))
def test_times_do_not_depend_on_when_the_engine_is_woken(
    replica: SimulatorSettings, workload: list[Any], every_ticks: int
) -> None:
    _, exact = replay(replica, workload, None)
    _, coarse = replay(replica, workload, every_ticks)
    assert facts(coarse) == facts(exact)


@settings(max_examples=40)
@given(WORKLOAD)
def test_cached_tokens_equal_a_model_that_knows_only_computed_prompts(
    workload: list[Any],
) -> None:
    replica = SimulatorSettings(block_tokens=WIDTH, prefill_tokens_per_s=8.0)
    _, sequences = replay(replica, workload, None)
    prompts = [values for _, values, _, _, _ in workload]
    for one, values in zip(sequences, prompts, strict=True):
        if not one.first_token_s:
            continue
        best = 0
        for other, known in zip(sequences, prompts, strict=True):
            if other is one or not 0 < other.first_token_s <= one.started_s:
                continue
            common = next(
                (at for at, (a, b) in enumerate(zip(values, known, strict=False)) if a != b),
                min(len(values), len(known)),
            )
            best = max(best, common // WIDTH)
        assert one.cached_tokens == min(best, (len(values) - 1) // WIDTH) * WIDTH
