"""The sentence about the gateway's health, and the events of the last hour."""

import time

import pytest

from tokenlane.control.dashboard.events import KEEP_S, EventLog
from tokenlane.control.dashboard.live import ReplicaRow
from tokenlane.control.dashboard.verdict import verdict

AT_S = time.mktime((2026, 11, 23, 23, 10, 0, 0, 0, -1))
UP = [ReplicaRow(id=f"r{number}", state="up") for number in range(3)]
DOWN = ReplicaRow(id="10.0.0.7:8000", state="down", since_s=AT_S, why="connection refused")
OUT = "10.0.0.7:8000 down since 23:10, connection refused"
SLOW = ReplicaRow(id="r9", state="up", times_slower=5.2)


@pytest.mark.parametrize(
    ("unready", "replicas", "cut", "lately", "text", "level"),
    [
        (None, UP, 0, 0, "all 3 up", "good"),
        (None, UP[:1], 0, 0, "1 of 1 up", "good"),
        (None, [*UP, DOWN], 4, 4, f"3 of 4 up; {OUT}; 4 answers cut", "warn"),
        (None, UP, 1, 1, "all 3 up; 1 answer cut", "warn"),
        (None, UP, 4, 0, "all 3 up; 4 answers cut", "good"),
        (None, [*UP, SLOW], 0, 0, "all 4 up; r9 is 5 times slower", "warn"),
        ("No replica is up.", [DOWN], 0, 0, f"No replica is up; 0 of 1 up; {OUT}", "bad"),
        (None, [*UP, *[DOWN] * 5], 0, 0, f"3 of 8 up; {OUT}; {OUT}; {OUT}; and 2 more", "warn"),
        (None, [ReplicaRow(id="r", state="draining"), *UP], 0, 0, "3 of 4 up; r draining", "warn"),
        (None, [], 0, 0, "0 of 0 up", "good"),
    ],
)
def test_the_verdict(
    unready: str | None, replicas: list[ReplicaRow], cut: int, lately: int, text: str, level: str
) -> None:
    found = verdict(unready, replicas, cut, lately)
    assert (found.text, found.level) == (text, level)


def test_events_of_an_hour_the_newest_first() -> None:
    log = EventLog()
    log.add("down", "warn", 0.0, AT_S)
    log.count("cut", 3, 1.0, AT_S + 1)
    log.count("cut", 2, 30.0, AT_S + 30)  # together with those before
    log.count("cut", 1, 100.0, AT_S + 100)
    assert [(row.text, row.count, row.at_s - AT_S) for row in log.rows(100.0)] == [
        ("cut", 1, 100),
        ("cut", 5, 1),
        ("down", 0, 0),
    ]
    assert log.counted("cut", 100.0) == 6
    assert log.counted("cut", 200.0, within_s=150.0) == 1
    assert [row.text for row in log.rows(KEEP_S)] == ["cut", "cut", "down"]
    assert [row.text for row in log.rows(KEEP_S + 50.0)] == ["cut"]
    assert log.rows(KEEP_S + 101.0) == []


def test_events_are_bounded() -> None:
    log = EventLog()
    for number in range(1000):
        log.add(str(number), "warn", 0.0, AT_S)
    assert len(log.rows(0.0)) == 200
