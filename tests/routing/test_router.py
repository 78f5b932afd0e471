"""The router's three verbs, and what fleet snapshots do to its memory."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from tokenlane.config.settings import HealthSettings, RoutingSettings
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import CacheChange, FleetState, Load, ReplicaState, Standing
from tokenlane.routing.candidates import LeftOut, Nobody
from tokenlane.routing.decision import Decision, Query, Reason
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.router import Router
from tokenlane.tokens.blocks import block_hashes

BLOCK = 16


def replica(slot: int, **fields: Any) -> ReplicaState:
    defaults = {"up": True, "models": ("m",), "block_tokens": BLOCK, "started_s": 1.0}
    return ReplicaState(id=f"r{slot}", slot=slot, url="", **{**defaults, **fields})


def fleet(*replicas: ReplicaState) -> FleetState:
    return FleetState(version=1, replicas=replicas)


class Bench:
    """A router with its board; requests are answered when the test says so."""

    def __init__(self, count: int = 4, *, slow_start_s: float = 0.0, **settings: Any) -> None:
        self.board = LocalBoard()
        health = HealthSettings(slow_start_s=slow_start_s)
        self.router = Router(RoutingSettings(**settings), self.board, Random(7), health)
        self.router.update(fleet(*map(replica, range(count))))

    def query(self, name: int, tokens: int) -> Query:
        ids = b"".join((name * 100_000 + at).to_bytes(4, "little") for at in range(tokens))
        return Query(block_hashes(ids, BLOCK), BLOCK, tokens, tokens, self.router.draw())

    def decide(self, query: Query, now: float = 0.0) -> Decision:
        return self.router.decide(query, self.router.eligible("m", now))

    def served(self, query: Query, now: float = 0.0) -> int:
        choice = self.decide(query, now).choice
        with self.router.attempt(choice, query, now) as lease:
            lease.first_byte()
        return choice.slot


def test_a_conversation_follows_its_prefix_and_is_predicted() -> None:
    bench = Bench()
    home = bench.served(bench.query(1, 1000))
    for turn in range(1, 6):
        query = bench.query(1, 1000 + 100 * turn)
        decision = bench.decide(query)
        assert (decision.choice.slot, decision.reason) == (home, Reason.PREFIX)
        assert decision.choice.cached_tokens == (900 + 100 * turn) // BLOCK * BLOCK
        assert bench.served(query) == home


def test_the_same_prompt_again_computes_its_last_block() -> None:
    bench = Bench()
    bench.served(bench.query(1, 960))
    assert bench.decide(bench.query(1, 960)).choice.cached_tokens == 944


def test_cold_conversations_spread_over_an_idle_fleet() -> None:
    bench = Bench()
    homes = Counter(bench.served(bench.query(name, 1000)) for name in range(40))
    assert set(homes.values()) == {10}


def test_a_shared_first_block_does_not_bind_them_together() -> None:
    bench = Bench()
    head = bytes(4 * BLOCK)
    homes: Counter[int] = Counter()
    for name in range(1, 41):
        ids = head + name.to_bytes(4, "little") * 1000
        query = Query(block_hashes(ids, BLOCK), BLOCK, len(ids) // 4, len(ids) // 4)
        homes[bench.served(query)] += 1
    assert set(homes.values()) == {10}


def test_siblings_in_flight_are_seen_at_once() -> None:
    bench = Bench()
    query = bench.query(1, 1000)
    first = bench.decide(query).choice
    with bench.router.attempt(first, query, 0.0):
        again = bench.decide(bench.query(1, 1100))
        assert again.choice.slot == first.slot
        assert again.choice.load == Load(requests=1, queued_tokens=1000)
        assert again.choice.cost == 1100 - 992 + 0.375 * 1000  # three of four idle


def test_deciding_changes_nothing() -> None:
    bench = Bench()
    bench.served(bench.query(1, 1000))
    query = bench.query(2, 500)
    once, again = bench.decide(query), bench.decide(query)
    assert (once.choice.slot, once.costs) == (again.choice.slot, again.costs)
    assert bench.board.load(0) == Load(requests=0, queued_tokens=0)


@pytest.mark.row("U10")
def test_a_restart_forgets_and_a_slow_probe_does_not() -> None:
    bench = Bench(2)
    query = bench.query(1, 1000)
    home = bench.served(query)
    others = [replica(slot) for slot in range(2) if slot != home]
    bench.router.update(fleet(*others, replica(home, up=False)))
    bench.router.update(fleet(*others, replica(home)))
    assert bench.decide(query).choice.slot == home
    bench.router.update(fleet(*others, replica(home, started_s=2.0)))
    assert bench.decide(query).reason is Reason.COLD


def test_a_refused_connection_puts_a_replica_out_and_forgets_its_cache() -> None:
    bench = Bench(2, refused_out_s=2.0)
    query = bench.query(1, 1000)
    decision = bench.decide(query)
    bench.router.attempt(decision.choice, query, 0.0)
    bench.router.unreachable(decision.choice.slot, 0.0, refused=True)
    assert bench.decide(query, 1.0).candidates.slots == (1 - decision.choice.slot,)
    assert bench.decide(query, 3.0).reason is Reason.COLD


def test_a_timed_out_connection_keeps_the_cache() -> None:
    bench = Bench(2, refused_out_s=2.0)
    query = bench.query(1, 1000)
    home = bench.served(query)
    bench.router.unreachable(home, 0.0, refused=False)
    assert bench.decide(query, 1.0).choice.slot != home
    assert bench.decide(query, 3.0).choice.slot == home


def test_a_replica_that_rises_is_trusted_again() -> None:
    bench = Bench(2)
    bench.router.unreachable(0, 0.0, refused=True)
    bench.router.update(fleet(replica(0, up=False), replica(1)))
    bench.router.update(fleet(replica(0), replica(1)))
    assert bench.decide(bench.query(1, 100), 0.1).candidates.slots == (0, 1)


@pytest.mark.row("U10")
def test_a_restarted_replica_is_not_overrun() -> None:
    """It is the least busy of all, and would get every new conversation."""
    bench = Bench(4, slow_start_s=60.0)
    now = 0.0
    for number in range(400):
        now += 0.15
        bench.served(bench.query(number, 1000), now)
    others = [replica(slot) for slot in range(1, 4)]
    bench.router.update(fleet(replica(0, started_s=2.0), *others))
    counts: Counter[int] = Counter()
    for number in range(400, 800):
        now += 0.15  # a minute
        counts[bench.served(bench.query(number, 1000), now)] += 1
    assert counts[0] <= 1.5 * 400 / 4
    for number in range(800, 1200):
        now += 0.15
        counts[bench.served(bench.query(number, 1000), now)] += 1
    assert counts[0] >= 0.2 * 800 / 4


@pytest.mark.row("U8", "U10")
@pytest.mark.parametrize("trouble", ["refused", "ejected", "full", "none"])
def test_a_restarted_replica_is_used_where_no_other_can_be(trouble: str) -> None:
    bench = Bench(2, slow_start_s=60.0, replica_limit_count=4)
    bench.router.update(fleet(replica(0), replica(1, started_s=2.0)))
    if trouble == "refused":
        bench.router.unreachable(0, 0.0, refused=False)
    elif trouble == "full":
        bench.board.add(0, 4, 0)
    elif trouble == "ejected":
        assert any(bench.router.failed(0, 0.0) for _ in range(5))
    found = [bench.router.eligible("m", 1.0) for _ in range(100)]
    assert not any(among.nobody or among.panic for among in found)
    if trouble != "none":
        assert {among.slots for among in found} == {(1,)}
        return
    spared = [among for among in found if among.spared]
    assert 70 <= len(spared) < 100
    for among in spared:
        assert (among.slots, among.spared) == ((0,), (1,))
        assert among.left_out == {1: LeftOut.STARTING}


@pytest.mark.row("U9")
def test_a_prefix_is_not_followed_to_a_replica_that_fails() -> None:
    bench = Bench(4)
    query = bench.query(1, 1000)
    home = bench.served(query)
    for _ in range(5):
        assert bench.decide(query).choice.slot == home
        bench.router.health.failed(home, 0.0)
    assert bench.decide(query, 1.0).choice.slot != home
    assert bench.decide(query, 29.0).choice.slot != home
    assert bench.decide(query, 31.0).choice.slot == home, "its cache is not forgotten"


@pytest.mark.row("U8")
def test_when_all_fail_all_are_used() -> None:
    bench = Bench(2)
    for slot in range(2):
        for _ in range(9):
            bench.router.health.failed(slot, 0.0)
        bench.router.unreachable(slot, 0.0, refused=False)
    among = bench.router.eligible("m", 1.0)
    assert (among.slots, among.panic) == ((0, 1), True)


@pytest.mark.row("U8")
def test_an_outage_of_another_model_keeps_no_failing_replica_in() -> None:
    bench = Bench(0)
    models = ["a"] * 5 + ["m"] * 5
    bench.router.update(fleet(*(replica(slot, models=(m,)) for slot, m in enumerate(models))))
    for slot in (0, 1, 2, 3, 4, 7):
        for _ in range(5):
            bench.router.failed(slot, 0.0)
    assert bench.router.eligible("m", 1.0).slots == (5, 6, 8, 9)


def test_a_removed_replica_leaves_no_trace() -> None:
    bench = Bench(2)
    query = bench.query(1, 1000)
    home = bench.served(query)
    bench.router.update(fleet(*(replica(slot) for slot in range(2) if slot != home)))
    bench.router.update(fleet(replica(0), replica(1)))
    assert bench.decide(query).reason is Reason.COLD


def test_hints_about_a_removed_replica_come_too_late() -> None:
    bench = Bench(2)
    query = bench.query(1, 1000)
    bench.router.update(fleet(replica(0)))
    sizes = bench.router.sizes_bytes()
    bench.router.learn(1, query.blocks)
    bench.router.cached(
        CacheChange(1, 0, 1, Standing.COMPLETE, 16, cleared=True, stored=query.blocks)
    )
    bench.router.unreachable(1, 0.0, refused=True)
    assert bench.router.sizes_bytes() == sizes


@pytest.mark.row("U8")
def test_failures_of_a_removed_replica_are_nobodys() -> None:
    """Streams break when a pod is killed, after it has left the fleet."""
    bench = Bench(4)
    bench.router.update(fleet(*map(replica, range(3))))
    assert not any(bench.router.failed(3, 0.0) for _ in range(9))
    assert not bench.router.health.troubled
    assert [bench.router.failed(0, 0.0) for _ in range(9)].count(True) == 1
    assert bench.router.left_out(1.0) == {0: LeftOut.EJECTED}


def test_names_that_nobody_lists_are_one() -> None:
    bench = Bench(0)
    bench.router.update(fleet(replica(0), replica(1, models=(), adapters={"a": "m"})))
    for name in range(100):
        assert bench.router.eligible(f"x{name}", 0.0).slots == (1,)
    assert bench.router.eligible("m", 0.0).slots == bench.router.eligible(None, 0.0).slots == (0, 1)
    assert bench.router.eligible("a", 0.0).left_out == {0: LeftOut.NO_ADAPTER}
    assert len(bench.router._eligible) == 3
    bench.router.update(fleet(replica(0)))
    assert bench.router.eligible("x0", 0.0).nobody is Nobody.UNKNOWN_MODEL


def test_another_policy_knows_what_was_learned() -> None:
    bench = Bench(2)
    query = bench.query(1, 1000)
    home = bench.served(query)
    bench.router.configure(RoutingSettings(policy="round-robin"), HealthSettings())
    assert bench.decide(query).reason is Reason.TURN
    assert not bench.router.uses_prefix
    with pytest.raises(ConfigError, match="did you mean"):
        bench.router.configure(RoutingSettings(policy="affinty"), HealthSettings())
    assert bench.decide(query).reason is Reason.TURN
    bench.router.configure(RoutingSettings(), HealthSettings())
    decision = bench.decide(query)
    assert (decision.choice.slot, decision.reason) == (home, Reason.PREFIX)


def test_what_another_worker_sent_counts_too() -> None:
    bench = Bench()
    query = bench.query(1, 1000)
    bench.router.learn(2, query.blocks)
    decision = bench.decide(query)
    assert (decision.choice.slot, decision.reason) == (2, Reason.PREFIX)


def test_nobody_is_eligible() -> None:
    bench = Bench()
    assert bench.router.eligible("x", 0.0).nobody is Nobody.UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("setting", "reported", "block_tokens"),
    [(0, [16, 16], 16), (0, [32, 128], 32), (64, [16, 16], 64), (0, [None, None], 16)],
)
def test_block_size_is_set_or_learned(
    setting: int, reported: list[int | None], block_tokens: int
) -> None:
    bench = Bench(2, block_tokens=setting)
    bench.router.update(fleet(*(replica(s, block_tokens=b) for s, b in enumerate(reported))))
    assert bench.router.block_tokens() == block_tokens


def test_capacity_counts_in_the_blocks_of_the_queries() -> None:
    bench = Bench(1, block_tokens=16)
    bench.router.update(fleet(replica(0, block_tokens=64, cache_blocks=100)))
    assert repr(bench.router) == "<Router affinity <PrefixIndex {0: 0/400} blocks> <Marks {}>>"


def test_an_unknown_policy_stops_the_start() -> None:
    with pytest.raises(ConfigError):
        Router(RoutingSettings(policy="none"), LocalBoard())
