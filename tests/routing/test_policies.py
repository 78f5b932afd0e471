"""Policies by table, and what must hold for all of them."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy.routing.policies
from proxy.errors import ConfigError
from proxy.model import Load
from proxy.routing.decision import Candidates, Decision, Query, Reason
from proxy.routing.policies import POLICIES, make_policy
from proxy.settings import RoutingSettings


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


def columns(rows: list[Candidate]) -> Candidates:
    return Candidates(
        slots=[row.slot for row in rows],
        cached_tokens=[row.cached_tokens for row in rows],
        requests=[row.load.requests for row in rows],
        queued_tokens=[row.load.queued_tokens for row in rows],
        history=Rows({row.slot: row for row in rows}),
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
    assert decide(policy, shuffled, draw=draw).choice == decide(policy, distinct, draw=draw).choice


AFFINITY = [
    # name, candidates, first, reason
    ("longest prefix", [one(0, 1600), one(1, 3200), one(2)], 1, Reason.PREFIX),
    ("nobody has it: least queued", [one(0, queued=50), one(1), one(2, queued=9)], 1, Reason.COLD),
    ("equal queues: fewest requests", [one(0, requests=2), one(1, requests=1)], 1, Reason.COLD),
    ("all idle: least recent work", [one(0, recent=9.0), one(1, recent=3.0)], 1, Reason.COLD),
    ("all equal: longest ago", [one(0, chosen_at=5), one(1, chosen_at=4)], 1, Reason.COLD),
    ("a template's first block is no prefix", [one(0, 16, recent=9.0), one(1)], 1, Reason.COLD),
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
    among = msgspec.structs.replace(columns(rows), slowness=[2.0, 0.5])
    decision = make_policy(RoutingSettings()).choose(query, among)
    assert decision.costs == pytest.approx(
        [0.9 * 2400 + 0.1 * 2 * 3400, 0.9 * 4000 + 0.1 * 0.5 * 5000]
    )
    alike = msgspec.structs.replace(among, slowness=[1.0, 1.0])
    costs = make_policy(RoutingSettings()).choose(query, alike).costs
    assert costs == pytest.approx(make_policy(RoutingSettings()).choose(query, columns(rows)).costs)


@given(CANDIDATES)
def test_affinity_never_pays_more_than_a_tie_over_the_lowest_cost(
    candidates: list[Candidate],
) -> None:
    decision = decide("affinity", candidates)
    assert decision.choice.cost <= min(decision.costs) + 250


@given(CANDIDATES)
def test_affinity_settles_ties_as_the_tie_rule_says(candidates: list[Candidate]) -> None:
    alike = [
        Candidate(c.slot, 1600, Load(c.load.requests, c.load.queued_tokens % 3), at, -at)
        for at, c in enumerate(candidates)
    ]
    assert decide("affinity", alike).choice.slot == min(alike, key=idleness).slot


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
    folder = Path(proxy.routing.policies.__path__[0])
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert files == set(POLICIES)
    for name in POLICIES:
        assert make_policy(RoutingSettings(policy=name)).name == name
    assert [name for name in POLICIES if make_policy(RoutingSettings(policy=name)).uses_prefix] == [
        "affinity"
    ]


def test_an_unknown_policy_is_one_clear_sentence() -> None:
    with pytest.raises(ConfigError, match=r"routing\.policy: 'best' is unknown; choose one of"):
        make_policy(RoutingSettings(policy="best"))
