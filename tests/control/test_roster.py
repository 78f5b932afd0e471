"""Replicas that come and go: which slots they get, and who is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.settings import ControlSettings
from tokenlane.control.fleet_table import FleetTable, Probe
from tokenlane.control.roster import API, QUARANTINE_S, STATIC, Roster
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import Load


class Scene:
    """A roster, what is in flight by slot, a clock, and what was told."""

    def __init__(self, *backends: str, limit: int = 4) -> None:
        self.table = FleetTable(backends, ControlSettings())
        self.in_flight: dict[int, int] = {}
        self.now_s = 100.0
        self.told: list[tuple[list[int], list[int]]] = []
        self.roster = Roster(
            self.table,
            limit,
            lambda slot: Load(self.in_flight.get(slot, 0), 0),
            lambda added, gone: self.told.append((added, gone)),
            lambda: self.now_s,
        )

    @property
    def ids(self) -> list[str]:
        return [replica.id for replica in self.table.replicas]

    @property
    def draining(self) -> list[str]:
        return [replica.id for replica in self.table.replicas if replica.draining]

    def take_told(self) -> list[tuple[list[int], list[int]]]:
        told, self.told = self.told, []
        return told


def test_a_replica_is_added_drained_wanted_back_and_removed() -> None:
    scene = Scene("http://a:1")
    member, is_new = scene.roster.add("http://b:1/")
    assert (member.id, member.slot, member.origin, is_new) == ("b:1", 1, API, True)
    assert scene.take_told() == [([1], [])]
    version = scene.table.state.version

    assert scene.roster.drain("b:1") is not None
    assert (scene.draining, scene.take_told()) == (["b:1"], [([], [])])
    assert scene.table.state.version > version
    scene.roster.sweep()  # who was drained by a person stays, idle or not
    assert scene.ids == ["a:1", "b:1"]

    member, is_new = scene.roster.add("http://b:1")
    assert (member.draining, is_new, scene.draining) == (False, False, [])
    assert scene.take_told() == [([], [])]

    scene.in_flight[1] = 7  # streams end by themselves, and nobody waits for them
    assert scene.roster.remove("b:1") is not None
    assert (scene.ids, scene.take_told()) == (["a:1"], [([], [1])])
    assert scene.roster.remove("b:1") is None
    assert scene.roster.drain("b:1") is None
    assert scene.take_told() == []


def test_whom_a_source_drops_leaves_when_nothing_is_in_flight() -> None:
    scene = Scene("http://a:1", "http://b:1")
    scene.in_flight[1] = 1
    scene.roster.want(STATIC, ["http://a:1"])
    assert (scene.ids, scene.draining) == (["a:1", "b:1"], ["b:1"])
    scene.roster.sweep()
    assert scene.ids == ["a:1", "b:1"]
    scene.in_flight[1] = 0
    scene.roster.sweep()
    assert scene.ids == ["a:1"]
    assert scene.take_told() == [([], []), ([], [1])]
    scene.roster.want(STATIC, ["http://a:1"])  # nothing new: nobody is told
    assert scene.take_told() == []


def test_a_source_that_does_not_know_changes_nothing() -> None:
    scene = Scene("http://a:1")
    scene.roster.want("dns", ["http://b:1"])
    scene.roster.want("dns", None)
    assert (scene.ids, scene.draining) == (["a:1", "b:1"], [])
    scene.roster.drop("dns")
    assert scene.draining == ["b:1"]


def test_what_a_person_said_outlives_the_next_answer_of_a_source() -> None:
    scene = Scene("http://a:1", "http://b:1", "http://c:1")
    scene.roster.remove("a:1")
    scene.roster.drain("b:1")
    scene.roster.want(STATIC, ["http://a:1", "http://b:1", "http://c:1"])
    assert (scene.ids, scene.draining) == (["b:1", "c:1"], ["b:1"])
    scene.roster.add("http://a:1")
    assert sorted(scene.ids) == ["a:1", "b:1", "c:1"]
    member = scene.roster.member("a:1")
    assert member is not None
    assert (member.origin, member.slot) == (STATIC, 3)  # its old slot is not free yet


def test_a_slot_is_given_out_again_when_nothing_is_left_in_it() -> None:
    scene = Scene("http://a:1", "http://b:1", limit=2)
    scene.in_flight[0] = 1
    scene.roster.remove("a:1")
    with pytest.raises(ConfigError, match="no more than 2"):
        scene.roster.add("http://c:1")
    scene.now_s += QUARANTINE_S
    with pytest.raises(ConfigError, match="no more than 2"):  # a stream still runs there
        scene.roster.add("http://c:1")
    scene.in_flight[0] = 0
    member, _ = scene.roster.add("http://c:1")
    assert member.slot == 0
    assert [replica.id for replica in scene.table.replicas] == ["c:1", "b:1"]


def test_whoever_finds_no_place_gets_one_later() -> None:
    scene = Scene("http://a:1", limit=1)
    scene.roster.want("file", ["http://b:1"])
    assert scene.ids == ["a:1"]
    scene.roster.want(STATIC, [])
    scene.roster.sweep()
    assert scene.ids == []
    scene.now_s += QUARANTINE_S
    scene.roster.sweep()
    assert scene.ids == ["b:1"]


def test_another_scheme_takes_the_place_of_the_one_that_leaves() -> None:
    scene = Scene("http://a:1", "http://b:1")
    scene.in_flight[0] = 1
    scene.roster.want(STATIC, ["https://a:1", "http://b:1"])
    scene.roster.sweep()
    assert [replica.url for replica in scene.table.replicas] == ["http://a:1", "http://b:1"]
    del scene.in_flight[0]
    scene.roster.sweep()
    assert {replica.url for replica in scene.table.replicas} == {"https://a:1", "http://b:1"}


def test_a_wrong_url_changes_nothing() -> None:
    scene = Scene("http://a:1")
    for wrong in ("b:1", "http://user:key@b:1", "ftp://b:1", "http://b:1/v1", "https://a:1"):
        with pytest.raises(ConfigError):
            scene.roster.add(wrong)
    with pytest.raises(ConfigError):
        scene.roster.want(STATIC, ["http://b:1", "nonsense"])
    assert (scene.ids, scene.draining, scene.told) == (["a:1"], [], [])
    scene.roster.want("file", ["https://a:1"])  # a source is not there to be told: it is left out
    assert scene.ids == ["a:1"]


def test_a_probe_that_ends_late_finds_nobody() -> None:
    scene = Scene("http://a:1", "http://b:1")
    scene.roster.remove("a:1")
    version = scene.table.state.version
    assert not scene.table.observe(0, Probe("ok"))
    assert not scene.table.learned(0, 100)
    assert scene.table.state.version == version


def test_who_waits_for_the_host_and_port_of_one_that_is_removed_gets_it() -> None:
    scene = Scene("http://a:1", "http://b:1")
    scene.in_flight[0] = 1
    scene.roster.want(STATIC, ["https://a:1", "http://b:1"])
    assert (scene.ids, scene.draining) == (["a:1", "b:1"], ["a:1"])
    scene.take_told()
    scene.roster.remove("a:1")
    assert [member.url for member in scene.roster.members] == ["http://b:1", "https://a:1"]
    assert scene.take_told() == [([], [0]), ([2], [])]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "drain", "remove", "want", "sweep", "wait", "load"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_a_slot_never_has_two_replicas_nor_another_while_something_is_in_flight(
    actions: list[tuple[str, int]],
) -> None:
    scene = Scene("http://r0:1", "http://r1:1", limit=4)
    held: dict[int, str] = {}  # by slot, whose requests are in flight there
    for action, number in actions:
        url, id_ = f"http://r{number}:1", f"r{number}:1"
        if action == "add":
            try:
                scene.roster.add(url)
            except ConfigError:
                pass
        elif action == "drain":
            scene.roster.drain(id_)
        elif action == "remove":
            scene.roster.remove(id_)
        elif action == "want":
            scene.roster.want(STATIC, [f"http://r{one}:1" for one in range(number)])
        elif action == "sweep":
            scene.roster.sweep()
        elif action == "wait":
            scene.now_s += QUARANTINE_S
        elif scene.in_flight.get(number % 4):
            scene.in_flight[number % 4] = 0
            held.pop(number % 4, None)
        else:
            replica = scene.table.get(number % 4)
            if replica is not None and not replica.draining:
                scene.in_flight[number % 4] = 1
                held[number % 4] = replica.id
        for replica in scene.table.replicas:
            assert held.get(replica.slot, replica.id) == replica.id
        ids = [member.id for member in scene.roster.members]
        assert ids == scene.ids
        assert len(set(ids)) == len(ids)
        assert scene.draining == [one.id for one in scene.roster.members if one.draining]
