"""Shares of places add up, and nobody gets less than a fair part of what they want."""

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.admission.places import Place, fair_shares, next_portion, place_limits
from tokenlane.config.settings import Tenant

WANTED = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 50), min_size=1)


@given(WANTED, st.integers(0, 100), st.integers(0, 2**40))
def test_shares_are_fair(wanted: dict[str, int], limit: int, turn: int) -> None:
    shares = fair_shares(wanted, limit, turn)
    assert sum(shares.values()) == limit
    for name, share in shares.items():
        assert share >= min(wanted[name], limit // len(wanted))


def test_shares() -> None:
    assert fair_shares({"a": 100, "b": 0, "c": 0}, 100) == {"a": 100, "b": 0, "c": 0}
    assert fair_shares({"a": 90, "b": 90, "c": 10}, 100) == {"a": 45, "b": 45, "c": 10}
    assert fair_shares({"a": 60, "b": 0, "c": 0}, 100) == {"a": 74, "b": 13, "c": 13}
    assert fair_shares({"a": 1, "b": 1, "c": 1}, 1) == {"a": 1, "b": 0, "c": 0}


@given(WANTED, st.integers(1, 100), st.integers(0, 2**40))
def test_what_cannot_be_divided_goes_round(wanted: dict[str, int], limit: int, turn: int) -> None:
    rounds = [fair_shares(wanted, limit, turn + number) for number in range(len(wanted))]
    for name, one in wanted.items():
        shares = [shares[name] for shares in rounds]
        assert max(shares) - min(shares) <= 1
        # Who wants more than others, or has another name, is no better off.
        assert max(shares) >= min(one, 1)
    assert all(sum(shares.values()) == limit for shares in rounds)


def test_turns() -> None:
    """Each of three has one of two places in two turns of three, whatever the others want."""
    wanted = {"a": 1, "b": 9, "c": 2, "idle": 0}
    rounds = [fair_shares(wanted, 2, turn) for turn in range(3)]
    assert rounds == [
        {"a": 1, "b": 1, "c": 0, "idle": 0},
        {"a": 1, "b": 0, "c": 1, "idle": 0},
        {"a": 0, "b": 1, "c": 1, "idle": 0},
    ]


def test_who_is_alone_has_all() -> None:
    assert next_portion("a", {"a": Place(0, 0, 0)}, 100) == 100


def test_nothing_is_given_back_that_nobody_needs() -> None:
    rich, idle = Place(80, 5, 5), Place(20, 0, 0)
    assert next_portion("a", {"a": rich, "b": idle}, 100) == 80
    assert next_portion("a", {"a": rich, "b": Place(20, 20, 40)}, 100) == 33
    # There is less to share than before.
    assert next_portion("a", {"a": rich, "b": idle}, 50) == 28


def test_only_what_is_free_is_claimed() -> None:
    needy = Place(20, 20, 90)
    assert next_portion("b", {"a": Place(80, 5, 5), "b": needy}, 100) == 20
    assert next_portion("b", {"a": Place(15, 40, 5), "b": needy}, 100) == 60
    assert next_portion("b", {"a": Place(5, 5, 5), "b": needy}, 100) == 92


def test_limits_of_tenants() -> None:
    tenants = {
        "a": Tenant(concurrency_limit_count=3),
        "b": Tenant(concurrency_limit_count=1, queued_limit_tokens=9),
        "c": Tenant(),
    }
    assert place_limits(tenants) == {"a/requests": 3, "b/requests": 1, "b/tokens": 9}
