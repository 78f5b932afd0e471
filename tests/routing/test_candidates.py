"""Who may take a request: the control plane's word first, then doubts, never nobody by doubt."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.routing.candidates import (
    Eligible,
    LeftOut,
    Marks,
    Nobody,
    restarted,
    roomy,
    sparing,
    undoubted,
)
from tokenlane.routing.candidates import eligible as in_service


def replica(slot: int, **fields: Any) -> ReplicaState:
    return ReplicaState(
        id=f"r{slot}", slot=slot, url="", **{"up": True, "models": ("m",), **fields}
    )


def eligible(state: FleetState, model: str | None, marks: Marks, now: float) -> Eligible:
    return undoubted(in_service(state, model), marks.out(now))


def fleet(*replicas: ReplicaState) -> FleetState:
    return FleetState(version=1, replicas=replicas)


TABLE = [
    # name, replicas, model, slots, nobody
    ("all up", [replica(0), replica(1)], "m", [0, 1], None),
    ("down ones are out", [replica(0, up=False), replica(1)], "m", [1], None),
    ("draining ones are out", [replica(0, draining=True), replica(1)], "m", [1], None),
    ("wrong model", [replica(0, models=("x",)), replica(1)], "m", [1], None),
    ("several models", [replica(0, models=("x", "m"))], "m", [0], None),
    ("models not known yet", [replica(0, models=())], "m", [0], None),
    ("any model", [replica(0, models=("x",)), replica(1)], None, [0, 1], None),
    ("nobody has it", [replica(0)], "x", [], Nobody.UNKNOWN_MODEL),
    ("its only replica is down", [replica(0, up=False), replica(1)], "x", [], Nobody.UNKNOWN_MODEL),
    ("all down", [replica(0, up=False)], "m", [], Nobody.DOWN),
    ("all leaving", [replica(0, draining=True)], "m", [], Nobody.DRAINING),
    ("down and leaving", [replica(0, draining=True), replica(1, up=False)], "m", [],
     Nobody.DRAINING),
    ("no replicas", [], "m", [], Nobody.DOWN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("replicas", "model", "slots", "nobody"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_filter(
    replicas: list[ReplicaState], model: str | None, slots: list[int], nobody: Nobody | None
) -> None:
    found = eligible(fleet(*replicas), model, Marks(2.0), 0.0)
    assert list(found.slots) == slots
    assert found.nobody is nobody
    assert not found.panic


def test_a_mark_ends_by_time_or_by_a_proof_of_life() -> None:
    marks = Marks(out_s=2.0)
    state = fleet(replica(0), replica(1))
    marks.fail(0, now=10.0)

    def slots(now: float) -> list[int]:
        return list(eligible(state, "m", marks, now).slots)

    assert slots(11.9) == [1]
    assert slots(12.0) == [0, 1]
    marks.fail(0, now=20.0)
    assert repr(marks) == "<Marks {0: 22.0}>"
    marks.clear(0)
    marks.clear(5)
    assert slots(20.0) == [0, 1]


def test_marks_on_all_are_marks_on_none() -> None:
    marks = Marks(2.0)
    state = fleet(replica(0), replica(1), replica(2, up=False))
    marks.fail(0, 0.0)
    marks.fail(1, 0.0)
    found = eligible(state, "m", marks, 1.0)
    assert list(found.slots) == [0, 1]
    assert found.panic


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=6),
    st.sets(st.integers(0, 5)),
)
def test_only_replicas_in_service_and_someone_if_there_is_one(
    states: list[tuple[bool, bool, bool]], failed: set[int]
) -> None:
    state = fleet(
        *(
            replica(slot, up=up, draining=draining, models=("m",) if has else ("x",))
            for slot, (up, draining, has) in enumerate(states)
        )
    )
    marks = Marks(1.0)
    for slot in failed:
        marks.fail(slot, 0.0)
    serving = {
        slot for slot, (up, draining, has) in enumerate(states) if up and has and not draining
    }
    found = eligible(state, "m", marks, 0.5)
    assert set(found.slots) == (serving - failed or serving)
    assert (found.nobody is None) == bool(serving)


@given(
    st.sets(st.integers(0, 4), min_size=1),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
)
def test_who_starts_slowly_is_spared_while_others_can(
    serving: set[int], doubted: set[int], full: set[int], starting: set[int], tried: set[int]
) -> None:
    all_of = Eligible(tuple(sorted(serving)))
    without_lot = undoubted(all_of, dict.fromkeys(doubted, LeftOut.EJECTED))
    without_lot = roomy(without_lot, [2 * (slot in full) for slot in without_lot.slots], 2)
    found = sparing(without_lot, starting)
    assert {*found.slots, *found.spared} == set(without_lot.slots), "nobody is lost"
    assert (found.nobody, found.panic) == (without_lot.nobody, without_lot.panic)
    left, may = found.without(tried), set(without_lot.slots) - tried
    assert {*left.slots, *left.spared} == may
    assert bool(left.slots) == bool(may)
    if not without_lot.panic and may - starting:
        assert set(left.slots) == may - starting
        assert all(found.left_out[slot] is LeftOut.STARTING for slot in left.spared)


RESTARTS = [
    ("new", [], [replica(0)], [0]),
    ("the same", [replica(0, started_s=5.0)], [replica(0, started_s=5.0)], []),
    ("another process", [replica(0, started_s=5.0)], [replica(0, started_s=9.0)], [0]),
    ("start learned late", [replica(0)], [replica(0, started_s=9.0)], []),
    ("back, start learned", [replica(0, up=False)], [replica(0, started_s=9.0)], [0]),
    ("a failed probe of the same process",
     [replica(0, started_s=5.0, up=False)], [replica(0, started_s=5.0)], []),
    ("back, start unknown", [replica(0, up=False)], [replica(0)], [0]),
    ("going down", [replica(0)], [replica(0, up=False)], []),
    ("gone", [replica(0), replica(1)], [replica(1)], []),
    ("its slot was given to another", [replica(0)], [ReplicaState("other", 0, "", up=True)], [0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "slots"), [row[1:] for row in RESTARTS], ids=[row[0] for row in RESTARTS]
)
def test_restarts(before: list[ReplicaState], after: list[ReplicaState], slots: list[int]) -> None:
    assert list(restarted(fleet(*before), fleet(*after))) == slots
