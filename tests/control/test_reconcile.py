"""Who should be in the fleet, held against who is."""

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.control.reconcile import Member, reconcile, wanted

NOBODY: frozenset[str] = frozenset()


def member(slot: int, url: str, **more: bool) -> Member:
    return Member(slot, url.partition("://")[2], url, "static", **more)


def test_the_first_source_that_names_a_replica_is_its_origin() -> None:
    named = wanted({"static": ["http://a:1"], "dns": ["http://b:1", "http://a:1"], "api": []})
    assert named == {"http://a:1": "static", "http://b:1": "dns"}
    assert list(named) == ["http://a:1", "http://b:1"]


def test_what_is_new_is_added_and_what_is_gone_leaves() -> None:
    members = [member(0, "http://a:1"), member(1, "http://b:1"), member(2, "http://c:1", held=True)]
    plan = reconcile({"http://b:1": "file", "http://d:1": "file"}, members, NOBODY)
    assert plan.add == (("http://d:1", "file"),)
    assert (plan.stay, plan.leave) == ((), (0, 2))


def test_who_leaves_and_is_named_again_stays() -> None:
    members = [member(0, "http://a:1", leaving=True)]
    plan = reconcile({"http://a:1": "dns"}, members, NOBODY)
    assert (plan.add, plan.stay, plan.leave) == ((), (0,), ())


def test_what_a_person_removed_stays_out_until_it_is_no_longer_named() -> None:
    gone = frozenset({"http://a:1", "http://x:1"})
    plan = reconcile({"http://a:1": "dns"}, [], gone)
    assert (plan.add, plan.dismissed) == ((), frozenset({"http://a:1"}))
    plan = reconcile({}, [], plan.dismissed)
    assert plan.dismissed == NOBODY
    assert reconcile({"http://a:1": "dns"}, [], plan.dismissed).add == (("http://a:1", "dns"),)


URLS = st.sampled_from([f"http://{name}:1" for name in "abcdef"])


@given(st.lists(URLS, unique=True), st.sets(URLS), st.sets(URLS), st.sets(URLS))
def test_afterwards_the_fleet_is_what_is_wanted_and_the_rest_drains(
    there: list[str], leaving: set[str], named: set[str], dismissed: set[str]
) -> None:
    members = [member(slot, url, leaving=url in leaving) for slot, url in enumerate(there)]
    plan = reconcile(dict.fromkeys(sorted(named), "s"), members, frozenset(dismissed - set(there)))
    stays = {url for url in there if url not in leaving}
    stays |= {there[slot] for slot in plan.stay}
    stays -= {there[slot] for slot in plan.leave}
    stays |= {url for url, _ in plan.add}
    assert stays == named - (dismissed - set(there))
    # Nothing is done twice, or to the same replica both ways.
    assert len({url for url, _ in plan.add}) == len(plan.add)
    assert not set(plan.stay) & set(plan.leave)
    assert not {url for url, _ in plan.add} & set(there)
