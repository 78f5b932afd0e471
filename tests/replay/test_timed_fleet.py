"""Simulated replicas, request by request, and the bounds they are held against."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tests.replay.workloads import conversations
from tokenlane.replay.bounds import oracle, pooled_hit
from tokenlane.replay.run import Figures, FleetShape
from tokenlane.replay.timed_fleet import ADDED_S, TOKEN_INTERVAL_S, Held
from tokenlane.replay.trace import Request, Trace, packed
from tokenlane.simulator.prefix_cache import BoundedBlockCache

BLOCK = 512


class Scripted:
    """Sends requests where the script says, and notes what it is told, and when."""

    def __init__(self, shape: FleetShape, places: list[int]) -> None:
        self.fleet = shape.fleet(BLOCK)
        self.places = iter(places)
        self.told: list[tuple[str, int, float]] = []

    def send(self, request: Request, now_s: float) -> tuple[int, Held]:
        place = next(self.places)

        def tell(word: str, now_s: float | None = None) -> None:
            assert now_s in {None, self.fleet.now_s}
            self.told.append((word, place, round(self.fleet.now_s, 6)))

        return place, Held(partial(tell, "first"), partial(tell, "end"))


def asked(at_s: float, ids: list[int], output: int = 10) -> Request:
    return Request(at_s, len(ids) * BLOCK, output, packed(ids))


def test_prefill_is_one_after_the_other_and_blocks_are_seen_at_its_end() -> None:
    shape = FleetShape(2, 100, prefill_tokens_per_s=1024)
    scripted = Scripted(shape, [0, 0, 1, 0])
    served = scripted.fleet.run(
        [asked(0, [1, 2]), asked(0, [1, 2, 3]), asked(0.5, [1, 2]), asked(9, [1, 2])], scripted
    )
    by_end = [(one.place, one.cached_tokens, round(one.ttft_s - ADDED_S, 6)) for one in served]
    # The second waits for the first and then finds its blocks; another replica has none of them;
    # the last token of a prompt is computed even where all of it was seen before.
    assert by_end == [(0, 0, 1.0), (1, 0, 1.0), (0, 1024, 1.5), (0, 512, 0.5)]
    ends_s = round(1.0 + ADDED_S, 6), round(1.0 + ADDED_S + 10 * TOKEN_INTERVAL_S, 6)
    assert [told for told in scripted.told if told[1:] in {(0, at_s) for at_s in ends_s}] == [
        ("first", 0, ends_s[0]),
        ("end", 0, ends_s[1]),
    ]
    assert [told[0] for told in scripted.told].count("end") == 4


def test_answers_under_way_slow_a_prefill_where_told_so() -> None:
    ttfts = []
    for cost in (0.0, 0.5):
        scripted = Scripted(FleetShape(1, 100, 1024, cost), [0, 0, 0])
        # The second and the third begin while one and two answers are under way.
        requests = [asked(0, [1, 2], 400), asked(0, [3, 4], 400), asked(0, [5, 6], 1)]
        ttfts.append([one.ttft_s - ADDED_S for one in scripted.fleet.run(requests, scripted)])
    assert [round(one, 6) for one in ttfts[0]] == [1.0, 2.0, 3.0]
    assert [round(one, 6) for one in ttfts[1]] == [1.0, 1.0 + 1.5, 1.0 + 1.5 + 2.0]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=40))
def test_a_cache_is_an_exact_lru_of_whole_prefixes(prompts: list[list[int]]) -> None:
    cache, order = BoundedBlockCache[int](8), list[int]()
    for ids in prompts:
        hashes = list(memoryview(packed(ids)).cast("Q"))
        held = 0
        while held < len(hashes) and hashes[held] in order:
            held += 1
        assert cache.match(hashes, len(hashes)) == held
        cache.insert(hashes)
        order = ([one for one in order if one not in hashes] + hashes[::-1])[-8:]
        assert len(cache) == len(order)


def test_the_head_of_a_prompt_longer_than_the_cache_stays() -> None:
    cache = BoundedBlockCache[int](3)
    cache.insert([1, 2, 3, 4, 5])
    assert cache.match([1, 2, 3, 4], 4) == 3
    assert cache.clear()
    assert len(cache) == 0


def test_bounds() -> None:
    twice = Trace("t", BLOCK, [asked(0, [1, 2, 3]), asked(0, [1, 2, 4])])
    # The pool has everything as soon as it was asked for; the oracle only what was computed.
    assert pooled_hit(twice, 10) == 2 / 6
    assert sum(one.cached_tokens for one in oracle(twice, FleetShape(2, 10))) == 0
    assert pooled_hit(twice, 1) == 1 / 6
    trace = conversations(40, 6)
    figures = Figures.of(oracle(trace, FleetShape(4, 10_000)), 4)
    assert 0.9 * pooled_hit(trace, 40_000) <= figures.hit <= pooled_hit(trace, 40_000)


def test_figures() -> None:
    shape = FleetShape(2, 100, prefill_tokens_per_s=1024)
    scripted = Scripted(shape, [0, 1, 1, 0])
    trace = [asked(0, [1, 2]), asked(0, [3]), asked(59, [4]), asked(60, [5, 6])]
    figures = Figures.of(scripted.fleet.run(trace, scripted), 2)
    assert figures.hit == 0
    assert round(figures.ttft_mean_s - ADDED_S, 6) == (1 + 0.5 + 0.5 + 1) / 4
    assert round(figures.ttft_p99_s - ADDED_S, 6) == 1
    # 2 of 4 blocks in the first minute, 2 of 2 in the second.
    assert figures.imbalance_60s == 2 * (1024 + 1024) / (6 * 512)
