"""Marks: the stage is known at once, long stretches are kept, listeners hear what they asked."""

import time

import pytest

from tokenlane.telemetry.stalls.stages import (
    CAUSES,
    INSPECT,
    LONG_S,
    METRICS,
    OTHER,
    PARSE,
    RELAY,
    ROUTE,
    TOKENIZE_LOCAL,
    LoopStage,
)


@pytest.fixture
def loop() -> LoopStage:
    return LoopStage()


def test_the_causes_are_the_promised_ones() -> None:
    promised = "parse inspect tokenize-local route relay metrics gc gil os other"
    assert " ".join(CAUSES) == promised
    stages = (PARSE, INSPECT, TOKENIZE_LOCAL, ROUTE, RELAY, METRICS)
    assert [CAUSES[stage] for stage in stages] == list(CAUSES[:6])
    assert CAUSES[OTHER] == "other"


def test_long_stretches_are_kept_and_short_ones_not(loop: LoopStage) -> None:
    loop.limit_s = 1e9  # however slow this machine is, not long
    for stage in (PARSE, INSPECT, OTHER):
        loop.mark(stage)
        assert loop.stage == stage
    loop.limit_s = LONG_S
    time.sleep(4 * LONG_S)
    loop.mark(ROUTE)
    [(stage, _, _)] = loop.take()
    assert stage == OTHER
    before_s = time.monotonic()
    time.sleep(4 * LONG_S)
    loop.mark(OTHER)
    [(stage, began_s, ended_s)] = loop.take()
    assert stage == ROUTE
    assert began_s <= before_s
    assert before_s + 4 * LONG_S <= ended_s <= time.monotonic()
    assert loop.take() == []


def test_work_is_told_once_and_since_when(loop: LoopStage) -> None:
    told: list[tuple[float, float]] = []

    def listen(after_s: float = 0.0) -> None:
        loop.on_work(lambda since_s, now_s: told.append((since_s, now_s)), after_s)

    listen()
    loop.mark(OTHER)
    assert told == []
    loop.mark(RELAY)
    loop.mark(OTHER)
    loop.mark(PARSE)
    [(since_s, now_s)] = told
    assert since_s == now_s <= time.monotonic()
    began_s = loop.since_s
    listen(began_s)
    time.sleep(0.001)
    loop.mark(OTHER)  # a stage's end shows that the loop was at work in it
    assert told[1] == (began_s, loop.since_s)
    listen(loop.since_s + 1000)
    loop.mark(PARSE)
    assert len(told) == 2


def test_every_mark_is_told_where_that_is_wanted(loop: LoopStage) -> None:
    told: list[int] = []
    loop.on_mark(told.append)
    loop.on_work(lambda *_: told.append(-1))
    loop.mark(PARSE)
    loop.mark(ROUTE)
    loop.mark(OTHER)
    assert told == [-1, PARSE, ROUTE, OTHER]
    loop.on_mark(None)
    loop.mark(PARSE)
    assert len(told) == 4


def test_spans_are_bounded(loop: LoopStage) -> None:
    loop.mark(RELAY)
    for _ in range(3000):
        loop.since_s -= 1.0
        loop.mark(RELAY)
    assert len(loop.spans) == 1000
