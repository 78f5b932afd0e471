"""Policies by table, and what must hold for all of them."""

from array import array
from collections import Counter
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenlane.routing.policies
from tokenlane.config.settings import RoutingSettings
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import Load
from tokenlane.routing.decision import Candidates, Decision, Query, Reason
from tokenlane.routing.policies import POLICIES, make_policy
from tokenlane.tokens.blocks import block_hashes


class Candidate(NamedTuple):
    """A row of the columns, as tests read best."""

    slot: int
    cached_tokens: int
    load: Load
    recent: float = 0.0
    chosen_at: float = 0.0


class Rows(NamedTuple):
    """A fixed History."""

    rows: dict[int, Candidate]

    def weight(self, slot: int) -> float:
        return self.rows[slot].recent

    def chosen_at(self, slot: int) -> float:
        return self.rows[slot].chosen_at


def columns(rows: list[Candidate], slowness: Sequence[float] = ()) -> Candidates:
    return Candidates(
        slots=[row.slot for row in rows],
        cached_tokens=[row.cached_tokens for row in rows],
        requests=[row.load.requests for row in rows],
        queued_tokens=[row.load.queued_tokens for row in rows],
        history=Rows({row.slot: row for row in rows}),
        slowness=slowness,
    )


def idleness(row: Candidate) -> tuple[int, int, float, float]:
    return row.load.queued_tokens, row.load.requests, row.recent, row.chosen_at


def decide(
    policy: str,
    candidates: list[Candidate],
    tokens: int = 4000,
    draw: int = 0,
    inexact: Reason | None = None,
) -> Decision:
    query = Query(b"", 16, tokens, tokens, draw, inexact)
    return make_policy(RoutingSettings(policy=policy)).choose(query, columns(candidates))


def one(
    slot: int,
    cached: int = 0,
    queued: int = 0,
    requests: int = 0,
    recent: float = 0.0,
    chosen_at: float = 0.0,
) -> Candidate:
    return Candidate(slot, cached, Load(requests, queued), recent, chosen_at)


CANDIDATES = st.lists(
    st.builds(
        one,
        slot=st.integers(0, 30),
        cached=st.integers(0, 250).map(lambda blocks: 16 * blocks),
        queued=st.integers(0, 200_000),
        requests=st.integers(0, 100),
        recent=st.floats(0, 1e7),
        chosen_at=st.floats(-2, 1e6),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda candidate: candidate.slot,
)


@given(st.sampled_from(sorted(POLICIES)), CANDIDATES, st.integers(0, 2**64 - 1), st.randoms())
def test_a_choice_ignores_the_order_of_the_list(
    policy: str, candidates: list[Candidate], draw: int, random: object
) -> None:
    decision = decide(policy, candidates, draw=draw)
    assert decision.policy == policy
    by_slot = {candidate.slot: candidate for candidate in candidates}
    for choice in map(decision.row, range(len(candidates))):
        assert choice.cached_tokens + choice.uncached_tokens == 4000
        assert choice.load == by_slot[choice.slot].load
    distinct = [
        Candidate(c.slot, c.cached_tokens, c.load, c.recent, float(at))
        for at, c in enumerate(candidates)
    ]
    shuffled = list(distinct)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one_way, other_way = (decide(policy, rows, draw=draw).choice for rows in (distinct, shuffled))
    assert (one_way.slot, one_way.cost) == (other_way.slot, other_way.cost)


AFFINITY = [
    # name, candidates, first, reason
    ("longest prefix", [one(0, 1600), one(1, 3200), one(2)], 1, Reason.PREFIX),
    ("nobody has it: least queued", [one(0, queued=50), one(1), one(2, queued=9)], 1, Reason.COLD),
    ("equal queues: fewest requests", [one(0, requests=2), one(1, requests=1)], 1, Reason.COLD),
    ("all idle: least recent work", [one(0, recent=9.0), one(1, recent=3.0)], 1, Reason.COLD),
    ("all equal: longest ago", [one(0, chosen_at=5), one(1, chosen_at=4)], 1, Reason.COLD),
    ("a template's first block is no prefix", [one(0, 16, recent=9.0), one(1)], 1, Reason.COLD),
    ("less than a quarter is as good as new", [one(0, 992, queued=9), one(1)], 1, Reason.COLD),
    ("more than a quarter is not", [one(0, 1008, queued=9), one(1)], 0, Reason.PREFIX),
    ("busy, but worth the wait", [one(0, 3200, queued=20_000), one(1, queued=9)], 0, Reason.PREFIX),
    ("too busy while another idles", [one(0, 3200, queued=20_000), one(1)], 1, Reason.SPILL),
    ("busier than the prefix is worth", [one(0, 3200, queued=40_000), one(1)], 1, Reason.SPILL),
    ("spill to the next longest", [one(0, 3984, queued=50_000), one(1, 2000)], 1, Reason.SPILL),
    ("one replica", [one(7, 3200)], 7, Reason.ONLY_ONE),
    ("two copies: the idle one", [one(0, 3200, queued=100), one(1, 3200)], 1, Reason.PREFIX),
]


@pytest.mark.parametrize(
    ("candidates", "first", "reason"),
    [row[1:] for row in AFFINITY],
    ids=[row[0] for row in AFFINITY],
)
def test_affinity(candidates: list[Candidate], first: int, reason: Reason) -> None:
    decision = decide("affinity", candidates)
    assert (decision.choice.slot, decision.reason) == (first, reason)
    assert decision.exact


def test_affinity_prices_own_and_queued_tokens() -> None:
    busy = decide("affinity", [one(0, 1600, queued=1000), one(1, queued=10)])
    assert busy.costs == [2500, 4001]
    half_idle = decide("affinity", [one(0, 1600, queued=1000), one(1)])
    assert half_idle.costs == [2400 + 0.25 * 1000, 4000]


def test_affinity_pays_for_time_where_replicas_differ_in_speed() -> None:
    rows = [one(0, 1600, queued=1000), one(1, queued=1000)]
    query = Query(b"", 16, 4000, 4000)
    among = columns(rows, [2.0, 0.5])
    decision = make_policy(RoutingSettings()).choose(query, among)
    assert decision.costs == pytest.approx(
        [0.9 * 2400 + 0.1 * 2 * 3400, 0.9 * 4000 + 0.1 * 0.5 * 5000]
    )
    alike = columns(rows, [1.0, 1.0])
    costs = make_policy(RoutingSettings()).choose(query, alike).costs
    assert costs == pytest.approx(make_policy(RoutingSettings()).choose(query, columns(rows)).costs)


@given(CANDIDATES)
def test_affinity_never_pays_more_than_a_tie_over_the_lowest_cost(
    candidates: list[Candidate],
) -> None:
    decision = decide("affinity", candidates)
    longest = max(candidate.cached_tokens for candidate in candidates)
    tie = longest if longest <= 1000 else 250  # a quarter of the prompt is as good as nothing
    assert decision.choice.cost <= min(decision.costs) + max(tie, 250)


@given(CANDIDATES)
def test_affinity_settles_ties_as_the_tie_rule_says(candidates: list[Candidate]) -> None:
    alike = [
        Candidate(c.slot, 1600, Load(c.load.requests, c.load.queued_tokens % 3), at, -at)
        for at, c in enumerate(candidates)
    ]
    assert decide("affinity", alike).choice.slot == min(alike, key=idleness).slot


def hashed(policy: str, query: Query, rows: list[Candidate], **settings: Any) -> Decision:
    return make_policy(RoutingSettings(policy=policy, **settings)).choose(query, columns(rows))


def prompt(head: int, rest: int, tokens: int = 4000, **fields: Any) -> Query:
    ids = array("I", [head] * 256 + [rest] * (tokens - 256)).tobytes()
    return Query(block_hashes(ids, 16), 16, tokens, tokens, **fields)


def test_prefix_hash_follows_the_head_alone() -> None:
    rows = [one(slot) for slot in range(8)]
    homes = set()
    for head in range(40):
        decisions = [
            hashed("prefix-hash", prompt(head, rest, head_tokens=256), rows) for rest in range(4)
        ]
        assert {decision.reason for decision in decisions} == {Reason.HASH}
        assert len({decision.choice.slot for decision in decisions}) == 1
        homes.add(decisions[0].choice.slot)
    assert homes == set(range(8))
    # Where the head's end is not known, the first tokens up to the limit are the head.
    far = {hashed("prefix-hash", prompt(0, rest), rows).choice.slot for rest in range(20)}
    near = [
        hashed("prefix-hash", prompt(0, rest), rows, head_limit_tokens=128) for rest in range(20)
    ]
    assert len(far) > 2
    assert len({decision.choice.slot for decision in near}) == 1


def test_prefix_hash_without_a_block_goes_where_least_is_queued() -> None:
    decision = hashed("prefix-hash", Query(b"", 16, 9, 9), [one(0, queued=5), one(1, queued=4)])
    assert (decision.choice.slot, decision.reason) == (1, Reason.LEAST_LOAD)


def test_a_replica_that_leaves_moves_only_its_own_heads() -> None:
    rows = [one(slot) for slot in range(6)]
    for head in range(40):
        query = prompt(head, 1, head_tokens=256)
        home = hashed("prefix-hash", query, rows).choice.slot
        gone = (home + 1) % 6
        left = [row for row in rows if row.slot != gone]
        assert hashed("prefix-hash", query, left).choice.slot == home


@pytest.mark.parametrize("policy", ["prefix-hash", "session"])
@given(requests=st.lists(st.integers(0, 50), min_size=1, max_size=9), key=st.integers(1, 2**63))
def test_hashing_bounds_the_load(policy: str, requests: list[int], key: int) -> None:
    rows = [one(slot, requests=count) for slot, count in enumerate(requests)]
    decision = hashed(policy, prompt(key % 2**32, 1, head_tokens=256, session=key), rows)
    fair = (sum(requests) + 1) / len(requests)
    assert decision.choice.load.requests < ceil(1.25 * fair)
    first = list(decision.costs).index(0)
    if len(rows) > 1:
        room = requests[first] < ceil(1.25 * fair)
        assert (decision.best == first) == room == (decision.reason is not Reason.SPILL)


def test_session_follows_its_name_else_its_prefix() -> None:
    rows = [one(slot, cached=3200 * (slot == 2)) for slot in range(4)]
    homes = [hashed("session", prompt(1, 1, session=name), rows) for name in range(1, 60)]
    assert {decision.choice.slot for decision in homes} == set(range(4))
    assert {decision.reason for decision in homes} == {Reason.SESSION}
    nameless = hashed("session", prompt(1, 1), rows)
    assert (nameless.choice.slot, nameless.reason, nameless.policy) == (2, Reason.PREFIX, "session")


def test_p2c_takes_the_lesser_of_two_and_never_the_worst() -> None:
    rows = [one(slot, queued=10 * slot) for slot in range(4)]
    chosen = Counter(decide("p2c", rows, draw=draw).choice.slot for draw in range(3000))
    # Of 4 replicas the idlest is in half of all pairs, the next the lesser of a third.
    assert chosen[0] == pytest.approx(1500, abs=150)
    assert chosen[1] == pytest.approx(1000, abs=150)
    assert not chosen[3]


def test_least_work_ignores_prefixes() -> None:
    decision = decide("least-work", [one(0, 3200, queued=10), one(1, queued=9), one(2, queued=11)])
    assert decision.choice.slot == 1
    assert decision.reason is Reason.LEAST_LOAD


def test_round_robin_takes_turns_by_the_last_choice() -> None:
    decision = decide(
        "round-robin", [one(0, chosen_at=3), one(1, chosen_at=1), one(2, chosen_at=2)]
    )
    assert decision.choice.slot == 1
    assert decision.reason is Reason.TURN


def test_random_gives_each_its_share_and_repeats_itself() -> None:
    candidates = [one(slot) for slot in range(4)]
    firsts = [decide("random", candidates, draw=draw).choice.slot for draw in range(2000)]
    assert all(400 < count < 600 for count in Counter(firsts).values())
    assert firsts == [decide("random", candidates, draw=draw).choice.slot for draw in range(2000)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("inexact", [Reason.NO_TOKENIZER, Reason.BAIL, Reason.NO_TOKENS])
def test_how_the_prompt_was_known_outranks_the_policy(policy: str, inexact: Reason) -> None:
    decision = decide(policy, [one(0, 3200)], inexact=inexact)
    assert decision.reason is inexact
    assert not decision.exact


@pytest.mark.parametrize("policy", ["affinity", "least-work", "round-robin"])
def test_ties_spread_evenly(policy: str) -> None:
    chosen_at = dict.fromkeys(range(5), 0.0)
    firsts = []
    for turn in range(1, 101):
        slot = decide(policy, [one(s, chosen_at=at) for s, at in chosen_at.items()]).choice.slot
        chosen_at[slot] = turn
        firsts.append(slot)
    assert set(Counter(firsts).values()) == {20}


def test_every_policy_is_a_file_and_found_by_its_name() -> None:
    folder = Path(tokenlane.routing.policies.__path__[0])
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert files == set(POLICIES)
    for name in POLICIES:
        assert make_policy(RoutingSettings(policy=name)).name == name
    assert {name for name in POLICIES if make_policy(RoutingSettings(policy=name)).uses_prefix} == {
        "affinity",
        "prefix-hash",
        "session",
    }


def test_an_unknown_policy_is_one_clear_sentence() -> None:
    with pytest.raises(ConfigError, match=r"routing\.policy: 'best' is unknown; choose one of"):
        make_policy(RoutingSettings(policy="best"))
