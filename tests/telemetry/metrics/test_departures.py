"""Departures: what was there and is not for long, told once."""

from tokenlane.fleet_state import ReplicaState
from tokenlane.telemetry.metrics.departures import KEPT_S, SHOWN_S, Departures, Label, labels_of

A, B, M = ("replica", "a"), ("replica", "b"), ("model", "a")


def test_what_is_gone_for_long_departs_once() -> None:
    departures = Departures(10.0)
    assert departures.tick({A, B, M}, 0.0) == set()
    assert departures.tick({B, M}, 9.0) == set()
    assert departures.tick({B}, 10.0) == {A}
    assert departures.tick({B}, 19.0) == {M}
    assert departures.tick({B}, 99.0) == set()


def test_who_returns_in_time_stays() -> None:
    departures = Departures(10.0)
    nobody: set[Label] = set()
    for now_s, present in ((0.0, {A}), (9.0, nobody), (9.5, {A}), (19.0, nobody)):
        assert departures.tick(present, now_s) == set()
    assert departures.tick(nobody, 19.5) == {A}


def test_labels_stand_for_replicas_and_models() -> None:
    replica = ReplicaState("r:1", 0, "http://r:1", models=("m", "adapter"))
    found = {("replica", "r:1"), ("model", "m"), ("model", "adapter"), ("model", "read")}
    assert labels_of([replica], ["read"]) == found


def test_a_model_that_is_called_other_never_departs() -> None:
    replica = ReplicaState("r:1", 0, "http://r:1", models=("other",))
    assert labels_of([replica], ["other"]) == {("replica", "r:1")}


def test_it_is_hidden_before_it_is_given_up() -> None:
    assert SHOWN_S < KEPT_S
