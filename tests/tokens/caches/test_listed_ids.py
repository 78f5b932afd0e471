"""Ids as JSON, from a cache: the same as without, whatever came before."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.parts import in_parts
from tokenlane.prompt import Prompt
from tokenlane.tokens.caches.listed_ids import PART_BYTES, ListedIds, ListedIdsCache
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.ids import pack

# Beginnings that prompts share, longer and shorter than a part.
SHARED = [list(range(5_000)), list(range(1_024)), list(range(1_023)), [2**32 - 1] * 3_000]
PROMPTS = st.lists(
    st.tuples(st.sampled_from([*SHARED, []]), st.lists(st.integers(0, 2**32 - 1), max_size=20)),
    max_size=12,
)


def found(cache: ListedIdsCache, ids: list[int], *, shared: bool = False) -> ListedIds:
    """What is known of a chat's ids. shared: they come in parts, as a next turn's do."""
    packed = pack(ids)
    if shared:
        parts = tuple(in_parts(packed, PART_BYTES))
        [one] = cache.find(Prompt((), b"", 16, len(ids), parts))
    else:
        [one] = cache.find(Prompt((packed,), b"", 16, len(ids)))
    return one


def listed(cache: ListedIdsCache, ids: list[int], *, shared: bool) -> list[int]:
    made: list[int] = json.loads(b"[%b]" % b",".join(found(cache, ids, shared=shared).items()))
    return made


@given(PROMPTS, st.sampled_from([0, 15_000, 10**6]))
def test_a_list_is_that_of_its_ids(prompts: list[tuple[list[int], list[int]]], limit: int) -> None:
    cache = ListedIdsCache(Budget(limit, limit))
    for front, rest in prompts:
        ids = front + rest
        assert listed(cache, ids, shared=False) == ids
        if ids:  # a next turn has some
            assert listed(cache, ids, shared=True) == ids
        assert cache.size_bytes <= limit


def test_only_what_is_new_is_made_from_the_third_turn_on() -> None:
    cache = ListedIdsCache(Budget(10**6, 10**5))
    history = list(range(100_000, 110_240))  # ten whole parts
    for unknown_bytes in (40_960, 40_960, 0):
        one = found(cache, history)
        assert one.unknown_bytes == unknown_bytes
        one.items()
    turn = found(cache, [*history, 1, 2], shared=True)
    assert turn.unknown_bytes == 8
    assert b",".join(turn.items()).endswith(b"110239,1,2")
    assert (cache.hits, cache.misses) == (20, 21)


def test_what_never_comes_back_displaces_nothing() -> None:
    cache = ListedIdsCache(Budget(30_000, 30_000))
    kept = list(range(1_024))
    for _ in range(2):
        found(cache, kept).items()
    for front in range(50):
        found(cache, [front, *kept]).items()
    assert cache.evictions == 0
    assert found(cache, kept).unknown_bytes == 0
