"""A generation is a prefix-closed set; the reference is the plain set of all prefixes."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.routing.chains import chain, prompts
from tokenlane.routing.generation import RUN_BLOCKS, Fork, Generation, Runs


def insert(generation: Generation, prompt: list[int]) -> None:
    blocks = chain(prompt)
    hashes = memoryview(blocks).cast("Q")
    generation.insert(blocks, hashes, generation.match(blocks, hashes))


def match(generation: Generation, prompt: list[int]) -> int:
    """What it says, whatever is guessed."""
    blocks = chain(prompt)
    hashes = memoryview(blocks).cast("Q")
    found = generation.match(blocks, hashes)
    for guess in {1, found - 1, found, found + 1, 31, 32, 33, 64, len(prompt), 1000} - {-1}:
        assert generation.match(blocks, hashes, guess) == found
    return found


def expected(held: set[tuple[int, ...]], prompt: list[int]) -> int:
    return max((n for n in range(1, len(prompt) + 1) if tuple(prompt[:n]) in held), default=0)


@given(st.lists(prompts(), max_size=12), st.lists(prompts(), max_size=5))
def test_equals_the_set_of_all_prefixes(inserted: list[list[int]], asked: list[list[int]]) -> None:
    generation = Generation()
    held: set[tuple[int, ...]] = set()
    for prompt in inserted:
        assert match(generation, prompt) == expected(held, prompt)
        insert(generation, prompt)
        held |= {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)}
        assert generation.blocks == len(held)
    for prompt in inserted + asked:
        assert match(generation, prompt) == expected(held, prompt)


@given(
    st.integers(0, 70),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), max_size=40),
)
def test_equals_it_where_many_prompts_part_ways(shared: int, ends: list[list[int]]) -> None:
    generation = Generation()
    held: set[tuple[int, ...]] = set()
    inserted = [[5] * shared + end for end in ends]
    for prompt in inserted:
        assert match(generation, prompt) == expected(held, prompt)
        insert(generation, prompt)
        held |= {tuple(prompt[:n]) for n in range(1, len(prompt) + 1)}
    assert generation.blocks == len(held)
    for prompt in inserted:
        assert match(generation, prompt) == len(prompt)
        assert match(generation, [*prompt[:-1], 9]) == len(prompt) - 1
        assert match(generation, [*prompt, 9]) == len(prompt)


def test_an_empty_prompt_and_an_empty_set() -> None:
    generation = Generation()
    assert match(generation, []) == 0
    assert match(generation, [1]) == 0
    insert(generation, [])
    assert generation.blocks == 0
    insert(generation, [1])
    assert match(generation, []) == 0


def test_a_growing_conversation_costs_its_new_blocks_only() -> None:
    generation = Generation()
    for turns in range(1, 60):
        insert(generation, [7] * (turns * 20))
    assert generation.blocks == 59 * 20
    assert len(generation._runs) == -(-59 * 20 // RUN_BLOCKS) - 1


def real_bytes(runs: Runs) -> int:
    if not isinstance(runs, Fork):
        return sys.getsizeof(runs) if runs else 0
    below = sum(sys.getsizeof(key) + real_bytes(way) for key, way in runs.ways.items())
    return sys.getsizeof(runs) + sys.getsizeof(runs.head) + sys.getsizeof(runs.ways) + below


def test_the_stated_size_is_near_the_real_one() -> None:
    long, short, forked, least = Generation(), Generation(), Generation(), Generation()
    pairs = Generation()
    for name in range(40):
        insert(long, [name] * 1000)
    for name in range(4000):
        insert(short, [name] * 10)
        insert(forked, [1] * 40 + [name] * 20)
        insert(least, [1] * 40 + [name])
        insert(pairs, [name, name, 1, 1, 1])
        insert(pairs, [name, name, 2, 2, 2])
    for generation in (long, short, forked, least, pairs):
        real = generation._store.size_bytes
        for table in (generation.roots, generation._runs):
            real += sys.getsizeof(table)
            real += sum([sys.getsizeof(key) + real_bytes(runs) for key, runs in table.items()])
        assert 0.5 < generation.size_bytes / real < 1.5
    assert long.size_bytes / long.blocks < 17
    assert forked.size_bytes / forked.blocks < 20
    assert short.size_bytes / short.blocks < 30
