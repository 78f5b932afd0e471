"""The block cache against a model that is a list."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenlane.simulator.prefix_cache import BoundedBlockCache, chain, prefix_cache


def ids(*values: int) -> bytes:
    return array("I", values).tobytes()


def test_chain_hashes_full_blocks_only() -> None:
    assert len(chain(ids(*range(7)), 2)) == 3
    assert chain(ids(*range(7)), 2) == chain(ids(*range(6)), 2)
    assert chain(b"", 2) == ()


def test_chain_depends_on_everything_before() -> None:
    first, second = chain(ids(1, 2, 3, 4), 2), chain(ids(9, 2, 3, 4), 2)
    assert first[1] != second[1]
    assert chain(ids(1, 2, 3, 4), 2, "a") != first
    assert not set(chain(ids(1, 2, 3, 4), 2, "a")) & set(chain(ids(1, 2, 3, 4), 2, "b"))


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 20), st.integers(1, 4))
def test_chain_continues_from_a_parent(values: list[int], cut: int, width: int) -> None:
    whole = chain(ids(*values), width)
    kept = min(cut, len(whole))
    if kept:
        tail = chain(ids(*values[kept * width :]), width, parent=whole[kept - 1])
        assert whole[:kept] + tail == whole


@pytest.mark.parametrize("capacity", [None, 2])
def test_blocks_are_visible_only_once_published(capacity: int | None) -> None:
    cache = prefix_cache(capacity)
    blocks = chain(ids(1, 2, 3, 4), 2)
    assert cache.take((), 2)
    assert cache.match(blocks, 2) == 0
    cache.publish(blocks)
    assert cache.match(blocks, 2) == 2
    assert cache.match(blocks, 1) == 1
    assert cache.used_blocks == 2
    cache.release(blocks, 0)
    assert (cache.used_blocks, len(cache)) == (0, 2)


def test_eviction_takes_the_oldest_tail_first() -> None:
    cache = prefix_cache(4)
    old, new = chain(ids(1, 2), 1), chain(ids(3, 4), 1)
    for blocks in (old, new):
        assert cache.take((), 2)
        cache.publish(blocks)
        cache.release(blocks, 0)
    assert cache.take((), 1)
    assert [cache.match(blocks, 2) for blocks in (old, new)] == [1, 2]
    assert cache.evicted_blocks == 1


def test_held_blocks_are_not_evicted_and_a_refusal_changes_nothing() -> None:
    cache = prefix_cache(3)
    blocks = chain(ids(1, 2), 1)
    assert cache.take((), 2)
    cache.publish(blocks)
    assert not cache.take((), 2)
    assert cache.take((), 1)
    assert (cache.match(blocks, 2), cache.used_blocks) == (2, 3)


def test_a_hit_on_idle_blocks_leaves_less_room_for_new_ones() -> None:
    cache = prefix_cache(3)
    blocks = chain(ids(1, 2), 1)
    assert cache.take((), 2)
    cache.publish(blocks)
    cache.release(blocks, 0)
    assert not cache.take(blocks, 2)
    assert cache.take(blocks, 1)


@pytest.mark.parametrize("capacity", [None, 4])
def test_clear_waits_for_running_sequences(capacity: int | None) -> None:
    cache = prefix_cache(capacity)
    blocks = chain(ids(1, 2), 1)
    assert cache.take((), 2)
    cache.publish(blocks)
    assert not cache.clear()
    cache.release(blocks, 0)
    assert cache.clear()
    assert (len(cache), cache.match(blocks, 2)) == (0, 0)


class CacheMachine(RuleBasedStateMachine):
    """Sequences over a small alphabet, so that prefixes are shared, in a small cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: BoundedBlockCache[bytes] = BoundedBlockCache(12)
        self.started: list[tuple[tuple[bytes, ...], tuple[bytes, ...], int]] = []
        self.running: list[tuple[tuple[bytes, ...], int]] = []
        self.seen: set[tuple[bytes, ...]] = set()

    @rule(values=st.lists(st.integers(0, 2), max_size=6), more=st.integers(0, 3))
    def start(self, values: list[int], more: int) -> None:
        blocks = chain(ids(*values), 1)
        self.seen.add(blocks)
        held = blocks[: self.cache.match(blocks, len(blocks))]
        private = len(blocks) - len(held) + more
        before = (len(self.cache), self.cache.used_blocks)
        if self.cache.take(held, private):
            self.started.append((blocks, held, private))
        else:
            assert (len(self.cache), self.cache.used_blocks) == before
            assert self.cache.used_blocks + private + len(held) > 12

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        blocks, held, private = self.started.pop(data.draw(st.integers(0, len(self.started) - 1)))
        fresh = blocks[len(held) :]
        self.cache.publish(fresh)
        self.running.append((blocks, private - len(fresh)))
        assert self.cache.match(blocks, len(blocks)) == len(blocks)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.cache.release(*self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @precondition(lambda self: self.started)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.started) - 1))
        _, held, private = self.started.pop(index)
        self.cache.release(held, private)

    @invariant()
    def capacity_holds(self) -> None:
        assert len(self.cache) <= 12

    @invariant()
    def running_blocks_stay(self) -> None:
        for blocks, _ in self.running:
            assert self.cache.match(blocks, len(blocks)) == len(blocks)

    @invariant()
    def what_is_visible_of_a_sequence_is_a_prefix(self) -> None:
        for blocks in self.seen:
            seen = [self.cache.match((block,), 1) for block in blocks]
            assert self.cache.match(blocks, len(blocks)) == sum(seen)
            assert seen == sorted(seen, reverse=True)

    @invariant()
    def used_is_what_is_held(self) -> None:
        visible = {block for blocks, _ in self.running for block in blocks}
        visible |= {block for _, held, _ in self.started for block in held}
        private = sum(count for _, count in self.running) + sum(
            count for _, _, count in self.started
        )
        assert self.cache.used_blocks == len(visible) + private


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=40)
