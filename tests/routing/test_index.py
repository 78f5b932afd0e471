"""The index against an exact LRU: never less than it holds, never more than twice as much."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.routing.chains import chain, long_prompt, prompts
from tokenlane.routing.index import PrefixIndex


class ExactLru:
    """What a replica keeps: the last `capacity` distinct blocks touched, heads last to go."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()

    def touch(self, prompt: list[int], tenant: str = "") -> None:
        for n in range(min(len(prompt), self.capacity), 0, -1):
            self.blocks[tenant, tuple(prompt[:n])] = None
            self.blocks.move_to_end((tenant, tuple(prompt[:n])))
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)

    def match(self, prompt: list[int], tenant: str = "") -> int:
        count = 0
        while count < len(prompt) and (tenant, tuple(prompt[: count + 1])) in self.blocks:
            count += 1
        return count


@given(
    st.lists(prompts(), max_size=25),
    st.integers(1, 300),
    st.integers(0, 70),
    st.sampled_from([0.0, 1e9]),
)
def test_holds_all_that_an_exact_lru_holds_and_at_most_twice_its_capacity(
    inserted: list[list[int]], capacity: int, slot: int, keep_s: float
) -> None:
    index, exact = PrefixIndex(capacity, keep_s), ExactLru(capacity)
    seen: list[list[int]] = []
    for prompt in inserted:
        index.insert(slot, chain(prompt))
        exact.touch(prompt)
        seen.append(prompt)
        assert index.match(slot, chain(prompt)) == min(len(prompt), capacity)
        assert index.held_blocks(slot) <= 2 * capacity
        for one in seen:
            assert index.match(slot, chain(one)) >= exact.match(one)


@given(st.lists(st.tuples(st.integers(0, 3), prompts()), max_size=20), prompts())
def test_nothing_is_invented_and_replicas_do_not_mix(
    inserted: list[tuple[int, list[int]]], asked: list[int]
) -> None:
    index = PrefixIndex(10_000)
    given_to: dict[int, set[tuple[int, ...]]] = {slot: set() for slot in range(4)}
    for slot, prompt in inserted:
        index.insert(slot, chain(prompt))
        given_to[slot] |= {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)}
    for slot, count in enumerate(index.match_all(range(4), chain(asked))):
        held = [n for n in range(1, len(asked) + 1) if tuple(asked[:n]) in given_to[slot]]
        assert count == max(held, default=0)
    assert len(index) == sum(map(len, given_to.values()))


@pytest.mark.row("U10")
def test_a_restart_empties_one_replica_at_once() -> None:
    index = PrefixIndex(1000)
    blocks = chain(long_prompt(1, 50))
    for slot in (0, 1):
        index.insert(slot, blocks)
    index.forget(0)
    assert index.match_all([0, 1], blocks) == [0, 50]
    assert index.held_blocks(0) == 0


def test_capacity_is_learned_and_bounded() -> None:
    index = PrefixIndex(100)
    index.set_capacity(0, 10)
    index.set_capacity(1, 100_000)
    index.set_capacity(2, None)
    for slot in range(3):
        for name in range(50):
            index.insert(slot, chain(long_prompt(name, 10)))
    held = [index.held_blocks(slot) for slot in range(3)]
    assert held[0] <= 20
    assert all(100 <= blocks <= 200 for blocks in held[1:])


def test_a_capacity_that_grows_drops_nothing_early() -> None:
    """Of a replica whose first turn comes early, too."""
    index = PrefixIndex(1000)
    index.set_capacity(3, 10)
    prompts = [chain(long_prompt(name, 1)) for name in range(700)]
    for blocks in prompts[:9]:
        index.insert(3, blocks)
    index.set_capacity(3, 1000)
    for blocks in prompts[9:]:
        index.insert(3, blocks)
    assert [index.match(3, blocks) for blocks in prompts] == [1] * 700


@pytest.mark.parametrize(("replicas", "apart"), [(2, 0.27), (3, 0.27), (4, 0.15), (8, 0.08)])
def test_replicas_that_are_given_the_same_begin_anew_at_different_times(
    replicas: int, apart: float
) -> None:
    """So that together they hold about half more than their capacities, and never much less."""
    index, held = PrefixIndex(100, keep_s=1e9), []
    for name in range(600):
        for slot in range(replicas):
            index.insert(slot, chain(long_prompt(name, 2)))
        held.append(len(index) / (100 * replicas))
    assert max(held) <= 1.5 + apart
    assert min(held[200:]) >= 1.5 - apart


def test_a_smaller_capacity_shrinks_with_use() -> None:
    index = PrefixIndex(1000)
    for name in range(90):
        index.insert(0, chain(long_prompt(name, 10)))
    index.set_capacity(0, 20)
    for name in range(100, 104):
        index.insert(0, chain(long_prompt(name, 10)))
    assert index.held_blocks(0) <= 40


def test_a_removed_or_unknown_replica_holds_nothing() -> None:
    index = PrefixIndex(100)
    blocks = chain([1, 2, 3])
    index.insert(4, blocks)
    index.remove(4)
    index.remove(5)
    assert index.match_all([4, 5], blocks) == [0, 0]
    assert index.held_blocks(5) == 0
    assert (len(index), index.size_bytes) == (0, 0)


def test_repr_shows_the_fill() -> None:
    index = PrefixIndex(64)
    index.insert(2, chain([1, 2, 3]))
    assert repr(index) == "<PrefixIndex {2: 3/64} blocks>"
    assert index.size_bytes > 0


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(0)
