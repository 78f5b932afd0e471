"""Ejection: the rules by a table and by a machine that tries every order, the clock in hand."""

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenlane.config.settings import HealthSettings
from tokenlane.fleet_state import ReplicaState
from tokenlane.routing.health import Health
from tokenlane.routing.retry import RetryBudget

SETTINGS = HealthSettings(
    failure_limit_count=3, ejection_s=10.0, ejection_limit_s=25.0, slow_start_s=4.0
)


def health(replicas: int = 4, draw: float = 0.5, **fields: Any) -> Health:
    made = Health(HealthSettings(**{**_FIELDS, **fields}), lambda: draw)
    made.fleet(of_models(*["m"] * replicas))
    return made


def of_models(*models: str) -> list[ReplicaState]:
    """A replica for each of these, which are names with spaces between, or none."""
    return [
        ReplicaState(id=f"r{slot}", slot=slot, url="", models=tuple(names.split()))
        for slot, names in enumerate(models)
    ]


_FIELDS = {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}


def fail(one: Health, slot: int, times: int, now: float) -> bool:
    return [one.failed(slot, now) for _ in range(times)][-1]


@pytest.mark.row("U8")
def test_failures_in_a_row_put_a_replica_out() -> None:
    one = health()
    assert not one.troubled
    assert not fail(one, 0, 2, 0.0)
    one.served(0)
    assert not one.troubled
    assert not fail(one, 0, 2, 0.0)
    assert one.failed(0, 0.0)
    assert one.ejected(9.9) == {0}
    assert one.ejected(10.0) == frozenset()


@pytest.mark.row("U8")
def test_one_that_comes_back_has_one_chance_and_is_out_for_longer() -> None:
    one = health()
    assert fail(one, 0, 3, 0.0)
    assert one.ejected(10.0) == frozenset()
    assert one.failed(0, 11.0)
    assert one.ejected(30.9) == {0}
    assert one.ejected(31.0) == frozenset()
    assert one.failed(0, 40.0)
    assert one.ejected(64.9) == {0}, "no longer than the limit"
    assert one.ejected(65.0) == frozenset()
    one.spared(65.0 + 4.0)
    one.served(0)
    assert not one.troubled
    assert fail(one, 0, 3, 70.0)
    assert one.ejected(80.0) == frozenset(), "a good time in between is forgiven"


@pytest.mark.row("U8")
@pytest.mark.parametrize(("replicas", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (9, 4)])
def test_never_too_many(replicas: int, most: int) -> None:
    one = health(replicas)
    for slot in range(replicas):
        fail(one, slot, 5, 0.0)
    assert len(one.ejected(1.0)) == most


@pytest.mark.row("U8")
@pytest.mark.parametrize(
    ("models", "failing", "out"),
    [
        (["a", "a", "a", "a", "b", "b"], [0, 1, 2, 4], {0, 1, 4}),
        (["a", "b", "b", "b", "b"], [0, 1, 2, 3], {0, 1, 2}),
        (["a b", "a", "b", "b"], [1, 2, 0], {1, 2}),
        (["a", "", "", "b"], [1, 0, 2], {1, 2}),
    ],
    ids=["one model's outage", "a model's only one", "one with both", "models not known yet"],
)
def test_a_model_has_its_own_share(models: list[str], failing: list[int], out: set[int]) -> None:
    one = health()
    one.fleet(of_models(*models))
    for slot in failing:
        fail(one, slot, 5, 0.0)
    assert one.ejected(1.0) == out


@pytest.mark.row("U8")
def test_a_slow_start_gives_its_share_by_degrees() -> None:
    shares = []
    for tenth in range(11):
        draws = itertools.count()
        one = Health(SETTINGS, partial(lambda draws: next(draws) / 1000, draws))
        one.fleet(of_models(*["m"] * 4))
        one.rise(2)
        one.spared(100.0)  # from now on
        got = [2 not in one.spared(100.0 + tenth * 0.4) for _ in range(999)]
        shares.append(sum(got) / 999)
        assert one.troubled == (tenth < 10)
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.1, abs=0.01)
    assert shares[5] == pytest.approx(0.5, abs=0.01)
    assert shares[10] == 1.0


def test_without_a_slow_start_it_is_back_at_once() -> None:
    one = health(slow_start_s=0.0)
    one.rise(1)
    assert not one.troubled


def test_a_reload_can_end_a_slow_start() -> None:
    one = health()
    one.rise(1)
    assert one.spared(0.0) == {1}
    one.settings = HealthSettings(slow_start_s=0.0)
    assert one.spared(-0.1) == set()
    assert not one.troubled


@pytest.mark.row("U8")
def test_a_rise_is_a_clean_record() -> None:
    one = health(draw=0.0)
    fail(one, 1, 3, 0.0)
    one.rise(1)
    assert not one.ejected(0.0)
    assert not one.spared(0.0)
    assert not fail(one, 1, 2, 0.0)


class Machine(RuleBasedStateMachine):
    """Whatever happens in whatever order: bounds hold, and time alone brings everybody back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.draw = 0.5
        self.replicas = 5
        self.health = Health(SETTINGS, lambda: self.draw)
        self.health.fleet(of_models(*["m"] * self.replicas))

    @rule(slot=st.integers(0, 4), times=st.integers(1, 4))
    def fails(self, slot: int, times: int) -> None:
        was = slot in self.health.ejected(self.now)
        ejects = fail(self.health, slot, times, self.now)
        assert not (was and ejects)
        if ejects:
            assert slot in self.health.ejected(self.now)

    @rule(slot=st.integers(0, 4))
    def serves(self, slot: int) -> None:
        self.health.served(slot)
        assert not self.health.failed(slot, self.now) or SETTINGS.failure_limit_count == 1
        self.health.served(slot)

    @rule(slot=st.integers(0, 4))
    def rises(self, slot: int) -> None:
        self.health.rise(slot)
        assert slot not in self.health.ejected(self.now)

    @rule(slot=st.integers(0, 4))
    def goes(self, slot: int) -> None:
        self.health.forget(slot)

    @rule(seconds=st.floats(0.0, 40.0), draw=st.floats(0.0, 0.99))
    def time_passes(self, seconds: float, draw: float) -> None:
        self.now += seconds
        self.draw = draw

    @invariant()
    def at_most_its_share_is_out(self) -> None:
        assert len(self.health.ejected(self.now)) <= 2
        assert not self.health.ejected(self.now) & self.health.spared(self.now)

    @precondition(lambda self: self.health.troubled)
    @rule()
    def a_quiet_hour_heals(self) -> None:
        self.now += 3600.0
        assert self.health.ejected(self.now) == frozenset()
        self.health.spared(self.now)
        assert not self.health.spared(self.now + 4.0)
        self.now += 4.0
        for slot in range(self.replicas):
            self.health.served(slot)
        assert not self.health.troubled


TestHealth = Machine.TestCase


@pytest.mark.row("U7")
def test_a_budget_bounds_what_is_tried_again() -> None:
    budget = RetryBudget(0.2, 3)
    assert [budget.spend() for _ in range(5)] == [True] * 3 + [False] * 2
    spent = 0
    for _ in range(1000):
        budget.request()
        spent += budget.spend()
    assert 199 <= spent <= 200
    for _ in range(1000):
        budget.request()
    assert [budget.spend() for _ in range(5)] == [True] * 3 + [False] * 2
