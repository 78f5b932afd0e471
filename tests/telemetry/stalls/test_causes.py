"""What a stall is charged to, as a table: the evidence of each kind of stall, and a few that are
made to mislead."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.telemetry.stalls.causes import Evidence, Look, decide, held_s
from tokenlane.telemetry.stalls.stages import CAUSES, INSPECT, OTHER, PARSE, RELAY, Span

END_S = 100.0
LOOP_STACK = ("asyncio/runners.py:118 Runner.run", "uvloop/__init__.py:92 run")
CODE_STACK = ("proxy/tokenlane/protocols/bodies.py:40 inspect", *LOOP_STACK)


def look(
    before_end_s: float,
    stage: int = PARSE,
    *,
    state: str = "S",
    cpu_s: float = 0.0,
    kept_s: float = 0.0005,
    stack: tuple[str, ...] = CODE_STACK,
) -> Look:
    return Look(END_S - before_end_s, stage, stack, state, cpu_s, kept_s)


def looks(stage: int = PARSE, **fields: Any) -> list[Look]:
    """One every 3 ms of the last 18 ms."""
    return [look(0.003 * left, stage, **fields) for left in range(6, 0, -1)]


def span(stage: int = PARSE, length_s: float = 0.02) -> list[Span]:
    return [(stage, END_S - length_s, END_S)]


def evidence(**fields: Any) -> Evidence:
    """A stall of 20 ms without anything to be said about it."""
    usual: dict[str, Any] = {
        "length_s": 0.02,
        "ended_s": END_S,
        "end_cpu_s": 0.0,
        "cpu_s": 0.0,
        "others_cpu_s": 0.0,
        "gc_s": 0.0,
        "waits": 2,
        "watchdog_waits": 1,
        "switch_interval_s": 0.0005,
        "looks": [],
        "watch_s": 0.018,
    }
    return Evidence(**{**usual, **fields})


CASES = {
    "a sleep in a stage": (evidence(looks=looks(), spans=span()), "parse"),
    "a sleep in a stage, seen but not marked long": (evidence(looks=looks(RELAY)), "relay"),
    "a sleep in code without a mark": (
        evidence(
            looks=looks(
                OTHER, stack=("proxy/tokenlane/protocols/bodies.py:40 inspect", *LOOP_STACK)
            )
        ),
        "inspect",
    ),
    "a sleep in code of somebody else": (
        evidence(looks=looks(OTHER, stack=("lib/thing.py:3 wait", *LOOP_STACK))),
        "other",
    ),
    "a sleep in a stage, over before anybody was to look": (
        evidence(length_s=0.004, watch_s=0.0, spans=span(RELAY, 0.004)),
        "relay",
    ),
    "the same, but the CPU was taken away": (
        evidence(length_s=0.004, watch_s=0.0, spans=span(RELAY, 0.004), preempted=1),
        "os",
    ),
    "a sleep in a stage, to be looked at near its end, and then not": (
        evidence(watch_s=0.004, spans=span()),
        "parse",
    ),
    "the same, and a look came when it was over": (
        evidence(watch_s=0.004, spans=span(), looks=[look(0.0, OTHER, kept_s=0.004)]),
        "parse",
    ),
    "to be looked at near its end, and the CPU was taken away": (
        evidence(watch_s=0.004, spans=span(), preempted=1),
        "os",
    ),
    "a sleep in a stage, to be looked at for half of it, and then not": (
        evidence(watch_s=0.010, spans=span()),
        "os",
    ),
    "nothing is known of it, and nobody was to look": (evidence(watch_s=0.0), "os"),
    "a spin": (evidence(looks=looks(state="R"), spans=span(), cpu_s=0.02), "parse"),
    "a spin that had half a CPU": (
        evidence(looks=looks(state="R"), spans=span(), cpu_s=0.009, end_cpu_s=0.009),
        "parse",
    ),
    "a C call that held the GIL": (
        evidence(looks=[look(0.0, OTHER, kept_s=0.018)], spans=span(INSPECT), cpu_s=0.02),
        "inspect",
    ),
    "a C call after which nobody looked": (evidence(spans=span(INSPECT), cpu_s=0.02), "inspect"),
    "a C call that slept and held the GIL": (
        evidence(looks=[look(0.0, OTHER, kept_s=0.018)], spans=span(), watchdog_waits=30),
        "parse",
    ),
    "many short callbacks": (
        evidence(looks=[*looks(RELAY), look(0.001, PARSE)], cpu_s=0.02),
        "relay",
    ),
    "own work that nobody saw": (evidence(cpu_s=0.02), "other"),
    "the collector": (evidence(gc_s=0.015, cpu_s=0.02, spans=span()), "gc"),
    "the collector, for a moment": (evidence(gc_s=0.005, cpu_s=0.02, spans=span()), "parse"),
    "a C call of another thread": (
        evidence(looks=[look(0.0, kept_s=0.018)], waits=30, watchdog_waits=30, others_cpu_s=0.02),
        "gil",
    ),
    "the same in the midst of a stage": (
        evidence(waits=30, watchdog_waits=30, others_cpu_s=0.02, spans=span()),
        "gil",
    ),
    "a C call of another thread that slept": (evidence(waits=30, watchdog_waits=30), "gil"),
    "a C call of another thread that had a third of a CPU": (
        evidence(length_s=0.07, watch_s=0.068, waits=34, watchdog_waits=37, others_cpu_s=0.021),
        "gil",
    ),
    "a spin of another thread": (
        evidence(looks=looks(stack=LOOP_STACK), waits=30, others_cpu_s=0.02),
        "gil",
    ),
    "another thread's work without the GIL": (
        evidence(looks=looks(), spans=span(), others_cpu_s=0.02),
        "parse",
    ),
    "the process was stopped": (evidence(), "os"),
    "the process was stopped, and its threads slept once more each for it": (
        evidence(waits=3, watchdog_waits=3),
        "os",
    ),
    "the process was stopped in the midst of a stage": (
        evidence(looks=[look(0.0, kept_s=0.018)], spans=span()),
        "os",
    ),
    "ready to run, and not run": (evidence(looks=looks(state="R"), spans=span()), "os"),
    "asleep where it waits for events": (
        evidence(looks=looks(OTHER, stack=LOOP_STACK)),
        "os",
    ),
}


@pytest.mark.parametrize(("seen", "cause"), CASES.values(), ids=CASES.keys())
def test_cause(seen: Evidence, cause: str) -> None:
    assert decide(seen).cause == cause


def spans(*stretches: tuple[int, float]) -> list[Span]:
    """One after the other, until the end. Stage and seconds of each."""
    found: list[Span] = []
    until_s = END_S
    for stage, length_s in reversed(stretches):
        found.insert(0, (stage, until_s - length_s, until_s))
        until_s -= length_s
    return found


HELD = {
    "one stage": (evidence(cpu_s=0.02, spans=spans((PARSE, 0.018), (OTHER, 0.002))), 0.018),
    "no stage": (evidence(cpu_s=0.02, spans=spans((OTHER, 0.02))), 0.02),
    "from stage to stage": (evidence(cpu_s=0.02, spans=spans((PARSE, 0.01), (RELAY, 0.01))), 0.02),
    "one piece after another": (
        evidence(cpu_s=0.02, spans=spans((PARSE, 0.008), (OTHER, 0.005), (PARSE, 0.007))),
        0.008,
    ),
    "pieces with something short between them": (
        evidence(cpu_s=0.02, spans=[(PARSE, 99.98, 99.99), (PARSE, 99.9901, 100.0)]),
        0.01,
    ),
    "many too short to be kept": (evidence(cpu_s=0.02), 0.0),
    "begun before the loop was late": (evidence(cpu_s=0.02, spans=spans((OTHER, 0.1))), 0.02),
    "on a CPU for a part of it": (evidence(cpu_s=0.015, spans=spans((PARSE, 0.02))), 0.015),
    "on a CPU for less than it missed": (evidence(cpu_s=0.015, spans=spans((PARSE, 0.004))), 0.0),
    "the collector within": (evidence(cpu_s=0.02, gc_s=0.015, spans=spans((PARSE, 0.02))), 0.005),
}


@pytest.mark.parametrize(("seen", "expected_s"), HELD.values(), ids=HELD.keys())
def test_how_long_one_piece_of_work_held_the_loop(seen: Evidence, expected_s: float) -> None:
    assert held_s(seen) == pytest.approx(expected_s)


def test_the_stack_is_of_a_look_at_the_cause() -> None:
    mixed = [look(0.015, RELAY, stack=("relay",)), look(0.002, PARSE, stack=("parse",))]
    assert decide(evidence(looks=mixed, cpu_s=0.02)) == ("parse", ("parse",))
    assert decide(evidence(looks=mixed, cpu_s=0.02, spans=span(RELAY))) == ("relay", ("relay",))


def test_time_before_the_loop_was_late_does_not_count() -> None:
    spans = [(RELAY, END_S - 0.1, END_S - 0.02), (PARSE, END_S - 0.015, END_S)]
    assert decide(evidence(spans=spans, cpu_s=0.02)).cause == "parse"


times = st.floats(0, 0.1)


@given(
    st.builds(
        evidence,
        length_s=st.floats(0.002, 10),
        cpu_s=times,
        end_cpu_s=times,
        others_cpu_s=times,
        gc_s=times,
        waits=st.integers(0, 100),
        watchdog_waits=st.integers(-5, 100),
        looks=st.lists(
            st.builds(
                look,
                times,
                st.integers(0, 5) | st.just(OTHER),
                state=st.sampled_from("RSDT?"),
                cpu_s=times,
                kept_s=times,
                stack=st.sampled_from([(), LOOP_STACK, CODE_STACK]),
            ),
            max_size=5,
        ),
        spans=st.lists(st.tuples(st.integers(0, 5), times, times), max_size=3),
    )
)
def test_every_stall_has_one_cause_of_the_closed_set(seen: Evidence) -> None:
    assert decide(seen).cause in CAUSES
