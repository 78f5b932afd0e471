"""The cache: a dictionary with two bounds, against a model of one."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.prompt import Prompt
from tokenlane.tokens.caches.lru import Budget, PromptCache


def prompt(tokens: int) -> Prompt:
    return Prompt((b"\0\0\0\0" * tokens,), b"", 16, tokens)


def cache(limit_bytes: int = 100_000, entry_bytes: int = 50_000) -> PromptCache:
    return PromptCache(Budget(limit_bytes, entry_bytes))


def size_bytes(tokens: int) -> int:
    return cache().size_of(b"", prompt(tokens))


def test_it_counts() -> None:
    made = cache()
    assert made.get(b"a") is None
    assert made.put(b"a", prompt(3))
    assert made.get(b"a") == prompt(3)
    assert (made.hits, made.misses, len(made), made.evictions) == (1, 1, 1, 0)
    assert made.size_bytes == size_bytes(3)
    made.clear()
    assert (len(made), made.size_bytes, made.evictions) == (0, 0, 0)


def test_an_entry_over_its_limit_is_not_taken_in() -> None:
    made = cache(entry_bytes=size_bytes(10))
    assert made.put(b"a", prompt(10))
    assert not made.put(b"b", prompt(11))
    assert len(made) == 1
    assert not cache(limit_bytes=100).put(b"a", prompt(10))


# Equal keys stand for equal prompts.
TOKENS = {"a": 0, "b": 10, "c": 35, "d": 60, "e": 80, "f": 200}


@given(st.lists(st.tuples(st.sampled_from(sorted(TOKENS)), st.booleans()), max_size=40))
def test_it_forgets_the_least_recently_used(operations: list[tuple[str, bool]]) -> None:
    limit_bytes = 1400
    made = cache(limit_bytes, 1000)
    model: OrderedDict[bytes, Prompt] = OrderedDict()
    evictions = 0
    for name, put in operations:
        key = name.encode()
        if not put:
            assert made.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
            continue
        new = prompt(TOKENS[name])
        if made.put(key, new):
            model[key] = new
            model.move_to_end(key)
            while sum(made.size_of(b"", one) for one in model.values()) > limit_bytes:
                model.popitem(last=False)
                evictions += 1
        assert len(made) == len(model)
        assert (
            made.size_bytes == sum(made.size_of(b"", one) for one in model.values()) <= limit_bytes
        )
    assert made.evictions == evictions


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 150)), max_size=60),
)
def test_caches_of_one_kind_keep_one_limit(
    models: int, operations: list[tuple[int, int, int]]
) -> None:
    """However many models there are; and who has no more than an even part of it loses nothing."""
    budget = Budget(4000, 1000)
    caches = [PromptCache(budget) for _ in range(models)]
    for at, key, tokens in operations:
        modest = [one for one in caches if one.size_bytes <= budget.limit_bytes / models]
        lost = [one.evictions for one in modest]
        asked = caches[at % models]
        asked.put(b"%d" % key, prompt(tokens))
        assert budget.size_bytes == sum(one.size_bytes for one in caches) <= budget.limit_bytes
        for one, before in zip(modest, lost, strict=True):
            assert one is asked or one.evictions == before


def test_a_model_takes_what_others_leave() -> None:
    budget = Budget(4000, 1000)
    idle, busy = PromptCache(budget), PromptCache(budget)
    for number in range(100):
        busy.put(b"%d" % number, prompt(10))
    assert busy.size_bytes > 0.9 * budget.limit_bytes
    for number in range(100):
        idle.put(b"%d" % number, prompt(10))
    assert abs(idle.size_bytes - busy.size_bytes) <= size_bytes(10)
