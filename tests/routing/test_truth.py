"""Truth against plain sets, and what a router makes of it together with what is on its way."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.routing.chains import chain, long_prompt, prompts
from tokenlane.config.settings import HealthSettings, RoutingSettings
from tokenlane.fleet_state import CacheChange, FleetState, Load, ReplicaState, Standing
from tokenlane.routing.decision import Query, Reason
from tokenlane.routing.lease import Lease, LocalBoard
from tokenlane.routing.pending import EPOCH_S, HINT_S, LAG_S, Pending
from tokenlane.routing.router import Router
from tokenlane.routing.truth import Truth
from tokenlane.tokens.blocks import block_hashes

BLOCK = 16


def change(slot: int = 0, rank: int = 0, ranks: int = 1, **fields: Any) -> CacheChange:
    given_fields = {"standing": Standing.COMPLETE, "block_tokens": BLOCK, **fields}
    return CacheChange(slot, rank, ranks, **given_fields)


def view(blocks: bytes) -> memoryview:
    return memoryview(blocks).cast("Q")


@given(st.lists(st.tuples(prompts(), st.integers(0, 80)), max_size=20), prompts())
def test_matches_are_those_of_the_sets(
    steps: list[tuple[list[int], int]], asked: list[int]
) -> None:
    """Prompts are stored whole and cut from their tails, as engines do."""
    truth = Truth(1.0)
    held: set[tuple[int, ...]] = set()
    for prompt, keep in steps:
        blocks = chain(prompt)
        truth.apply(change(stored=blocks))
        held |= {tuple(prompt[: n + 1]) for n in range(len(prompt))}
        if keep < len(prompt):
            cut = tuple(prompt[: keep + 1])
            gone = {one for one in held if one[: keep + 1] == cut}
            held -= gone
            truth.apply(change(removed=b"".join(chain(one)[-8:] for one in gone)))
        assert truth.held_blocks(0) == len(held)
    expected = 0
    while expected < len(asked) and tuple(asked[: expected + 1]) in held:
        expected += 1
    assert truth.match(0, chain(asked), view(chain(asked)), 0) == expected


def test_blocks_in_other_memory_are_worth_less() -> None:
    truth = Truth(0.5)
    blocks = chain(long_prompt(1, 10))
    truth.apply(change(stored=blocks[:32], host_stored=blocks[32:64]))
    assert truth.match(0, blocks, view(blocks), 0) == 4 + 2
    assert truth.match(0, blocks, view(blocks), 6) == 6 + 1
    truth.apply(change(host_removed=blocks[32:64]))
    assert truth.match(0, blocks, view(blocks), 0) == 4
    truth.apply(change(ranks=2, stored=blocks[:16], host_stored=blocks[16:32]))
    truth.apply(change(rank=1, ranks=2, host_stored=blocks))
    assert truth.by_rank(0, blocks, view(blocks)) == [2 + 1, 5]
    assert truth.match(0, blocks, view(blocks), 0) == 5


def test_a_replica_holds_what_its_best_rank_holds() -> None:
    truth = Truth(1.0)
    blocks = chain(long_prompt(1, 10))
    truth.apply(change(ranks=2, stored=blocks[:16]))
    assert truth.standing(0, BLOCK) is Standing.NONE  # of rank 1 nothing is known
    truth.apply(change(rank=1, ranks=2, stored=blocks))
    assert truth.standing(0, BLOCK) is Standing.COMPLETE
    assert truth.match(0, blocks, view(blocks), 0) == 10
    assert truth.by_rank(0, blocks, view(blocks)) == [2, 10]
    truth.apply(change(rank=1, ranks=2, cleared=True))
    assert truth.by_rank(0, blocks, view(blocks)) == [2, 0]
    truth.apply(change(stored=blocks))  # it has one rank now
    assert truth.by_rank(0, blocks, view(blocks)) == []
    truth.remove(0)
    assert truth.held_blocks(0) == 0
    assert truth.size_bytes == 0


def test_other_block_sizes_are_not_compared() -> None:
    truth = Truth(1.0)
    truth.apply(change(block_tokens=32))
    assert truth.standing(0, 32) is Standing.COMPLETE
    assert truth.standing(0, 16) is Standing.NONE


def test_pending_ends_a_moment_after_the_last_lease() -> None:
    pending = Pending()
    blocks = chain(long_prompt(1, 40))
    epoch = pending.insert(0, blocks, 10.0)
    epoch.open += 1
    pending.sweep(1000.0)
    assert pending.match(0, blocks, view(blocks)) == 40
    epoch.open -= 1
    pending.sweep(10.0 + EPOCH_S + LAG_S - 0.1)
    assert pending.match(0, blocks, view(blocks)) == 40
    pending.sweep(10.0 + EPOCH_S + LAG_S)
    assert pending.match(0, blocks, view(blocks)) == 0
    pending.insert(0, blocks, 20.0, hint=True)
    pending.sweep(20.0 + HINT_S - 0.1)
    assert pending.match(0, blocks, view(blocks)) == 40
    pending.sweep(20.0 + HINT_S)
    assert pending.size_bytes == 0


def test_long_waits_do_not_make_more_epochs() -> None:
    pending = Pending()
    for second in range(100):
        pending.insert(0, chain(long_prompt(second, 3)), 2.0 * second).open += 1
    assert len(pending._epochs[0]) == 8
    assert all(
        pending.match(0, one, view(one)) == 3
        for one in (chain(long_prompt(name, 3)) for name in range(100))
    )


@pytest.mark.parametrize("waiting", [1, 7])
def test_a_long_wait_keeps_no_other_prompt(waiting: int) -> None:
    pending = Pending()
    waits = [chain(long_prompt(name, 3)) for name in range(waiting)]
    for second, one in enumerate(waits):
        pending.insert(0, one, 2.0 * second).open += 1
    quick = [chain(long_prompt(7 + second, 3)) for second in range(60)]
    for second, one in enumerate(quick):
        pending.insert(0, one, 20.0 + second)
        pending.sweep(20.0 + second)
    pending.sweep(20.0 + 60 + EPOCH_S + LAG_S)
    assert [pending.match(0, one, view(one)) for one in waits] == [3] * waiting
    assert [pending.match(0, one, view(one)) for one in quick] == [0] * 60


class Bench:
    """A router over two replicas, the first of which tells what it holds."""

    def __init__(self) -> None:
        self.board = LocalBoard()
        health = HealthSettings(slow_start_s=0.0)  # who comes back is asked at once
        self.router = Router(RoutingSettings(host_block_worth=0.5), self.board, Random(3), health)
        self.router.update(FleetState(1, tuple(self.replica(slot) for slot in range(2))))
        self.router.cached(change())

    @staticmethod
    def replica(slot: int, **fields: Any) -> ReplicaState:
        given_fields = {"up": True, "models": ("m",), "block_tokens": BLOCK, **fields}
        return ReplicaState(f"r{slot}", slot, "", **given_fields)

    def query(self, name: int, tokens: int = 1600) -> Query:
        ids = name.to_bytes(4, "little") * tokens
        return Query(block_hashes(ids, BLOCK), BLOCK, tokens, tokens)

    def cached(self, query: Query) -> list[int]:
        decision = self.router.decide(query, self.router.eligible("m", 0.0))
        return list(decision.candidates.cached_tokens)


def test_what_was_routed_counts_until_it_is_computed_and_then_only_what_is_held() -> None:
    bench = Bench()
    query = bench.query(1)
    choice = bench.router.decide(query, bench.router.eligible("m", 0.0)).row(0)
    with bench.router.attempt(choice, query, 0.0) as lease:
        bench.router.sweep(100.0)
        assert bench.cached(query) == [1584, 0]  # it may wait for long
        lease.first_byte()
        bench.router.cached(change(stored=query.blocks[:400]))
    bench.router.sweep(100.0)
    assert bench.cached(query) == [800, 0]
    bench.router.cached(change(host_stored=query.blocks[400:480]))
    assert bench.cached(query) == [800 + 80, 0]
    bench.router.cached(change(cleared=True, forget=True))
    assert bench.cached(query) == [0, 0]


def test_an_incomplete_account_is_helped_out_by_the_own_index() -> None:
    bench = Bench()
    query = bench.query(1)
    with bench.router.attempt(
        bench.router.decide(query, bench.router.eligible("m", 0.0)).row(0), query, 0.0
    ):
        pass
    bench.router.sweep(100.0)
    assert bench.cached(query) == [0, 0]
    for standing in (Standing.PARTIAL, Standing.NONE):
        bench.router.cached(change(standing=standing))
        assert bench.cached(query) == [1584, 0]


def test_prompts_without_ids_go_by_the_own_index() -> None:
    bench = Bench()
    query = bench.query(1)
    text = Query(query.blocks, BLOCK, 1600, 1600, 0, Reason.NO_TOKENIZER)
    with bench.router.attempt(
        bench.router.decide(text, bench.router.eligible("m", 0.0)).row(0), text, 0.0
    ):
        pass
    bench.router.sweep(100.0)
    assert bench.cached(text) == [1584, 0]


def test_a_replica_that_makes_other_ids_goes_by_the_own_index() -> None:
    bench = Bench()
    query = bench.query(1)
    bench.router.cached(change(stored=query.blocks))
    assert bench.cached(query) == [1584, 0]
    silent = Query(query.blocks, BLOCK, 1600, 1600, silent=frozenset((0,)))
    assert bench.cached(silent) == [0, 0]
    decision = bench.router.decide(silent, bench.router.eligible("m", 0.0))
    assert [decision.candidates.slots[place] for place in (0, 1)] == [0, 1]
    assert decision.exact is (decision.choice.slot != 0)
    with bench.router.attempt(decision.row(0), silent, 0.0):
        pass
    bench.router.sweep(100.0)
    assert bench.cached(silent) == [1584, 0]
    assert not bench.router.decide(silent, bench.router.eligible("m", 0.0)).exact


def test_what_another_worker_sent_is_on_its_way() -> None:
    bench = Bench()
    query = bench.query(1)
    bench.router.learn(0, query.blocks, 5.0)
    assert bench.cached(query) == [1584, 0]
    bench.router.sweep(5.0 + HINT_S)
    assert bench.cached(query) == [0, 0]


def test_a_refused_connection_leaves_nothing() -> None:
    bench = Bench()
    query = bench.query(1)
    bench.router.cached(change(stored=query.blocks))
    assert bench.cached(query) == [1584, 0]
    bench.router.update(FleetState(2, (bench.replica(0, incarnation=1), bench.replica(1))))
    # The control plane says so too, in the same order.
    bench.router.cached(change(standing=Standing.NONE, cleared=True, forget=True))
    assert bench.cached(query) == [0, 0]
    assert bench.router.sizes_bytes()["own"] >= 0


def two_ranks(bench: Bench, **fields: Any) -> None:
    for rank in range(2):
        bench.router.cached(change(rank=rank, ranks=2, **fields))


def lease_of(bench: Bench, query: Query, now: float = 0.0) -> Lease:
    decision = bench.router.decide(query, bench.router.eligible("m", now))
    return bench.router.attempt(decision.row(0), query, now)


def test_the_rank_that_holds_a_prefix_gets_its_prompts() -> None:
    bench = Bench()
    two_ranks(bench)
    query = bench.query(1)
    bench.router.cached(change(rank=1, ranks=2, stored=query.blocks))
    for _ in range(3):
        with lease_of(bench, query) as lease:
            assert lease.rank == 1


def test_siblings_follow_to_the_rank_that_is_about_to_hold_their_prefix() -> None:
    bench = Bench()
    two_ranks(bench)
    with lease_of(bench, bench.query(1)) as first, lease_of(bench, bench.query(1)) as second:
        assert first.rank == second.rank
        with lease_of(bench, bench.query(2)) as other:
            assert other.rank == 1 - first.rank


def test_a_prefix_in_other_memory_is_its_ranks_too() -> None:
    bench = Bench()
    two_ranks(bench)
    query = bench.query(1)
    bench.router.cached(change(rank=1, ranks=2, host_stored=query.blocks))
    assert lease_of(bench, query).rank == 1


def test_a_rank_with_a_long_queue_is_spared() -> None:
    bench = Bench()
    two_ranks(bench)
    shared = bench.query(1, 160)
    bench.router.cached(change(rank=1, ranks=2, stored=shared.blocks))

    def longer(name: int) -> Query:
        ids = (1).to_bytes(4, "little") * 160 + name.to_bytes(4, "little") * 4000
        return Query(block_hashes(ids, BLOCK), BLOCK, 4160, 4160)

    with lease_of(bench, longer(2)) as first, lease_of(bench, longer(3)) as second:
        # At alpha 0.1 a queue of 4,000 tokens outweighs a prefix of 160.
        assert (first.rank, second.rank) == (1, 0)
        first.first_byte()
        assert lease_of(bench, longer(4)).rank == 1
    assert {bench.router._ranks._board.load(key) for key in (0, 1)} == {Load(0, 0)}


def test_without_ranks_none_is_picked() -> None:
    bench = Bench()
    assert lease_of(bench, bench.query(1)).rank == -1
    two_ranks(bench, standing=Standing.NONE)
    assert lease_of(bench, bench.query(1)).rank == -1
