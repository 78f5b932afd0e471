"""What caches count is what they take: filled by real jobs, then forgotten, the heap measured."""

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tokens.test_job import job_of
from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Prompt
from tokenlane.tokens.caches.budgets import CacheBudgets, TokenCaches
from tokenlane.tokens.caches.lru import Budget, PromptCache
from tokenlane.tokens.rungs import short

# Counted bytes may differ so much from real ones, either way.
TRUE = 1.3


@contextmanager
def heap() -> Iterator[Callable[[], int]]:
    """The bytes that Python's objects made in here take."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def words(draw: random.Random, count: int, alphabet: str = "abcdefgh") -> str:
    return " ".join("".join(draw.choices(alphabet, k=5)) for _ in range(count))


def chats(turns: int, length: int, alphabet: str) -> Iterator[dict[str, Any]]:
    """Conversations of so many turns, no two alike, each asked after every turn."""
    draw = random.Random(turns * length)
    for _ in range(max(2, 600 // (turns * turns + length))):
        messages = [{"role": "system", "content": words(draw, length, alphabet)}]
        for _ in range(turns):
            messages += [
                {"role": role, "content": words(draw, length, alphabet)}
                for role in ("user", "assistant")
            ]
            yield {"messages": messages[:-1]}


@pytest.mark.parametrize("alphabet", ["abcdefgh", "жщф中文"], ids=["latin", "wide"])
@pytest.mark.parametrize(("turns", "length"), [(1, 4), (1, 300), (12, 4), (12, 100), (3, 2000)])
def test_of_conversations(turns: int, length: int, alphabet: str) -> None:
    """Segments and prefixes, of which a prompt's ids are shared by none."""
    caches = TokenCaches.of(CacheBudgets.of(TokenSettings()))
    asked = list(chats(turns, length, alphabet))
    job_of(asked[0], caches=TokenCaches.of(CacheBudgets.of(TokenSettings()))).run()
    with heap() as held_bytes:
        for value in asked:
            job_of(value, caches=caches).run()
        counted = {kind: one.size_bytes for kind, one in caches._asdict().items()}
        taken = {}
        for kind, one in caches._asdict().items():
            before_bytes = held_bytes()
            for name in ("_known", "_alike", "_items", "_named", "_order"):
                getattr(one, name, {}).clear()
            taken[kind] = before_bytes - held_bytes()
    for kind, bytes_ in counted.items():
        if bytes_ > 20_000:
            assert taken[kind] / TRUE < bytes_ < taken[kind] * TRUE, kind
    assert max(counted.values()) > 20_000


@pytest.mark.parametrize("length", [120, 600, 3000])
def test_of_openings(length: int) -> None:
    draw = random.Random(length)
    caches = TokenCaches.of(CacheBudgets.of(TokenSettings()))
    with heap() as held_bytes:
        for _ in range(20):
            system = words(draw, length)
            for _ in range(2):
                messages = [
                    {"role": "system", "content": system},
                    {"role": "user", "content": words(draw, 5)},
                ]
                jobs = TokenCaches.of(CacheBudgets.of(TokenSettings()))
                own = jobs._replace(openings=caches.openings)
                limits = TokenSettings(thread_hop_s=1e9, stall_budget_s=1e9)
                short.run(job_of({"messages": messages}, caches=own), limits)
        assert len(caches.openings) == 20
        before_bytes, counted_bytes = held_bytes(), caches.openings.size_bytes
        caches.openings._items.clear()
        taken_bytes = before_bytes - held_bytes()
    assert taken_bytes / TRUE < counted_bytes < taken_bytes * TRUE


@pytest.mark.parametrize("tokens", [1, 10, 100, 2_000])
@pytest.mark.parametrize("sequences", [1, 8, 100])
def test_of_whole_requests(tokens: int, sequences: int) -> None:
    """A request of many prompts, each a token or two, takes ten times its ids."""
    draw, cache = random.Random(1), PromptCache(Budget(1 << 30, 1 << 30))
    count = max(20, 2000 // (tokens * sequences))
    with heap() as held_bytes:
        for _ in range(count):
            ids = [draw.randbytes(4 * tokens) for _ in range(sequences)]
            blocks = draw.randbytes(8 * (tokens // 16))
            cache.put(draw.randbytes(16), Prompt(tuple(ids), blocks, 16, tokens * sequences))
        ids = []
        before_bytes, counted_bytes = held_bytes(), cache.size_bytes
        cache.clear()
        taken_bytes = before_bytes - held_bytes()
    assert taken_bytes / TRUE < counted_bytes < taken_bytes * TRUE


@pytest.mark.parametrize("limit_bytes", [0, 26 * 1024, 192 * 1024 * 1024])
def test_what_all_may_hold_is_the_setting(limit_bytes: int) -> None:
    budgets = CacheBudgets.of(TokenSettings(cache_limit_bytes=limit_bytes))
    limits = {kind: one.limit_bytes for kind, one in budgets.by_kind().items()}
    kinds = ["request", "body", "shape", "opening", "segment", "prefix", "listed"]
    assert list(limits) == kinds
    assert limit_bytes - len(kinds) < sum(limits.values()) <= limit_bytes
    for one in budgets.by_kind().values():
        assert one.entry_limit_bytes <= one.limit_bytes / 16
