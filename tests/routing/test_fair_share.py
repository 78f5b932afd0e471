"""What one tenant adds to the index takes nothing from another that keeps within its share."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.routing.chains import chain, long_prompt, prompts
from tests.routing.test_index import ExactLru
from tokenlane.routing.fair_share import fair_share
from tokenlane.routing.index import PrefixIndex

ALWAYS_S = 1e9
# (whose prompt, the prompt, seconds after the one before)
Sent = tuple[str, list[int], float]


def sent(tenants: str) -> st.SearchStrategy[list[Sent]]:
    one = st.tuples(st.sampled_from(tenants), prompts(), st.sampled_from([0.0, 0.1, 5.0]))
    return st.lists(one, max_size=40)


@pytest.mark.parametrize(
    ("sizes", "total", "share"),
    [
        ([], 10, 10),
        ([3, 4], 10, 10),
        ([11], 10, 10),
        ([10, 10], 10, 5),
        ([1, 100], 10, 9),
        ([100, 1, 1], 10, 8),
        ([100, 4, 4, 4], 10, 2),
        ([0, 0, 100], 10, 10),
        ([5, 6, 100], 16, 5),
        ([9, 9, 9], 2, 0),
    ],
)
def test_a_fair_share(sizes: list[int], total: int, share: int) -> None:
    assert fair_share(sizes, total) == share


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 100))
def test_all_get_an_equal_part_or_what_they_want_and_no_more_than_there_is(
    sizes: list[int], total: int
) -> None:
    share = fair_share(sizes, total)
    got = [min(size, share) for size in sizes]
    assert total // len(sizes) <= share <= total
    assert sum(got) <= total
    if sum(sizes) > total:
        assert sum(got) > total - len(sizes)


@pytest.mark.row("S9")
@given(
    st.integers(1, 4),
    st.lists(st.tuples(prompts(), st.integers(0, 30), st.floats(0, 20)), min_size=1, max_size=30),
    st.integers(1, 300),
)
def test_a_flood_of_any_rate_leaves_what_others_used_lately(
    others: int, turns: list[tuple[list[int], int, float]], capacity: int
) -> None:
    """A tenant has a few prompts that fill its share at most, and now and then sends one, or not.
    In between others send, together, any number of prompts that nobody ever sent."""
    index, keep_s, now, number = PrefixIndex(capacity, keep_s=30.0), 30.0, 0.0, 0
    used: dict[tuple[int, ...], float] = {}
    held: set[tuple[int, ...]] = set()
    for prompt, flood, passed_s in turns:
        now += passed_s
        mine = held | {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)}
        if len(mine) <= capacity // (others + 1):
            held = mine
            index.insert(0, chain(prompt, "quiet"), "quiet", now)
            used[tuple(prompt)] = now
        for _ in range(flood):
            now += 0.01
            number += 1
            name = f"flood{number % others}"
            index.insert(0, chain(long_prompt(number, number % 90 + 1), name), name, now)
        for one, at_s in used.items():
            if now - at_s < keep_s:
                assert index.match(0, chain(one, "quiet"), "quiet") == len(one)
        assert index.held_blocks(0) <= 5 * capacity


# What either had in better times is much more than its half, and must not go before the other's.
BETTER_TIMES: list[Sent] = [
    (tenant, long_prompt(number, blocks), 0.0)
    for number, (tenant, blocks) in enumerate(
        [("a", 49), ("b", 50), ("b", 2), ("a", 90), ("b", 10), ("b", 89), ("b", 2)]
    )
]


@pytest.mark.row("S9")
@settings(max_examples=60)
@example(BETTER_TIMES, 100)
@given(sent("ab"), st.integers(2, 300))
def test_each_of_two_keeps_what_half_a_cache_would(requests: list[Sent], capacity: int) -> None:
    """Whatever either does, and had before."""
    index, now = PrefixIndex(capacity, ALWAYS_S), 0.0
    exact = {tenant: ExactLru(capacity // 2) for tenant in "ab"}
    for tenant, prompt, passed_s in requests:
        now += passed_s
        index.insert(0, chain(prompt, tenant), tenant, now)
        exact[tenant].touch(prompt)
        for whose, other, _ in requests:
            found = index.match(0, chain(other, whose), whose)
            assert found >= exact[whose].match(other)


@settings(max_examples=60)
@given(sent("abcd"), st.integers(1, 300), st.sampled_from([0.0, 5.0, ALWAYS_S]))
def test_nobody_holds_less_than_an_lru_that_all_share(
    requests: list[Sent], capacity: int, keep_s: float
) -> None:
    index, exact, now = PrefixIndex(capacity, keep_s), ExactLru(capacity), 0.0
    for tenant, prompt, passed_s in requests:
        now += passed_s
        index.insert(0, chain(prompt, tenant), tenant, now)
        exact.touch(prompt, tenant)
        assert index.held_blocks(0) <= 5 * capacity
        for whose, other, _ in requests:
            found = index.match(0, chain(other, whose), whose)
            assert found >= exact.match(other, whose)


@settings(max_examples=60)
@given(sent("abc"), st.integers(1, 300))
def test_without_time_to_keep_there_are_no_shares(requests: list[Sent], capacity: int) -> None:
    apart, together = PrefixIndex(capacity), PrefixIndex(capacity)
    for tenant, prompt, _ in requests:
        apart.insert(0, chain(prompt, tenant), tenant)
        together.insert(0, chain(prompt, tenant))
        assert apart.held_blocks(0) == together.held_blocks(0)
        for whose, other, _ in requests:
            blocks = chain(other, whose)
            assert apart.match(0, blocks, whose) == together.match(0, blocks)


@pytest.mark.parametrize("blocks", [10, 35])
def test_what_many_had_in_turn_is_bounded(blocks: int) -> None:
    """Each has the whole index for itself, one after the other, and nobody forgets."""
    index = PrefixIndex(100, ALWAYS_S)
    for name in range(20):
        for number in range(15):
            prompt = long_prompt(1 + number, blocks)
            index.insert(0, chain(prompt, str(name)), str(name), float(name))
            assert index.held_blocks(0) <= 500
            assert index.match(0, chain(prompt, str(name)), str(name)) == blocks


def test_who_left_takes_no_share() -> None:
    """And what it had goes; the one that is left has the whole capacity."""
    index = PrefixIndex(100, keep_s=60.0)
    mine = chain(long_prompt(1, 40), "gone")
    index.insert(0, mine, "gone", 0.0)
    for number in range(30):
        index.insert(0, chain(long_prompt(number, 20), "here"), "here", 10.0 * number)
        assert (index.match(0, mine, "gone") == 40) >= (10.0 * number < 60.0)
    assert index.match(0, mine, "gone") == 0
    assert index._tenants.keys() == {"here"}
    for number in range(5):
        index.insert(0, chain(long_prompt(100 + number, 20), "here"), "here", 300.0)
    for number in range(5):
        assert index.match(0, chain(long_prompt(100 + number, 20), "here"), "here") == 20


def test_a_restart_or_removal_empties_it_for_all_tenants() -> None:
    index = PrefixIndex(1000, ALWAYS_S)
    blocks = {name: chain(long_prompt(1, 50), name) for name in "ab"}
    for slot in (0, 1):
        for name, mine in blocks.items():
            index.insert(slot, mine, name)
    index.forget(0)
    for name, mine in blocks.items():
        assert index.match_all([0, 1], mine, name) == [0, 50]
        assert index.match_all([0, 1], mine) == [0, 0]
    index.remove(1)
    assert (len(index), index.size_bytes, index._tenants) == (0, 0, {})
