"""Rows of the live page that are told by the names of their families."""

import pytest

from tokenlane.control.dashboard.rates import Cells, Reading, Window
from tokenlane.control.dashboard.rows import STALLS, counts, stalls
from tokenlane.telemetry.metrics.families import BY_NAME
from tokenlane.telemetry.metrics.family import Family

FAMILY = Family("counter", STALLS, "Stalls.", ("cause",))


def test_stalls_the_most_frequent_first(monkeypatch: pytest.MonkeyPatch) -> None:
    old: Cells = {(STALLS, ("gc",)): [3.0], (STALLS, ("gil",)): [9.0]}
    new: Cells = {(STALLS, ("gc",)): [3.0], (STALLS, ("gil",)): [9.0], (STALLS, ("os",)): [4.0]}
    monkeypatch.setitem(BY_NAME, STALLS, FAMILY)
    rows = stalls(Window(Reading(0.0, old), Reading(10.0, new)), {"os": 0.2})
    assert [(row.cause, row.count, row.total, row.worst_s) for row in rows] == [
        ("gil", 0, 9, None), ("os", 4, 4, 0.2), ("gc", 0, 3, None),
    ]  # fmt: skip


def test_a_gateway_that_does_not_count_stalls_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BY_NAME, STALLS, raising=False)
    new: Cells = {(STALLS, ("gc",)): [3.0]}
    assert stalls(Window(Reading(0.0, {}), Reading(1.0, new)), {}) == []


def test_words_that_were_not_said_are_left_out() -> None:
    rows = counts({"b": 1.0, "a": 1.0, "never": 0.0, "c": 2.0})
    assert [(row.word, row.share) for row in rows] == [("c", 0.5), ("a", 0.25), ("b", 0.25)]
