"""A burst of misses that the threads have no room for: how long is the loop frozen?

    python -m bench burst [--smoke | --full]

20 prompts, and then 5, arrive at once, each new, each about 10 ms of encoding, at a gateway whose
queue holds one job: what is left takes the local rung. Under `wait` it waits for the permit and
runs in pieces; under `bail` all but one are routed without ids; without the permit (a stall budget
that nothing exceeds) each runs to its end where it stands. Inline and as shipped stand beside
them. Frozen is the longest time that the loop's beat was late, the median of several bursts.
"""

import time
from typing import Any, NamedTuple

import msgspec

from bench.loads import workload
from bench.loads.openloop import Plan
from bench.loads.phases import UNSERVED, Phase, given, phase, plain_flow
from bench.studies.ablation import NO_CACHE
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.demo_model import MODEL_FOLDER
from bench.tools.finding import Beside, Finding, Shape, Table, bars, few, milliseconds, times
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.statistics import Cell, median
from bench.tools.systems import ON_LOOP, REFERENCE
from bench.tools.watched import Watched, watched
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.tokenizer import Tokenizer

MISS_S = 0.010
GAP_S = 0.8
TURN_CHARS = 2_000
FULL_QUEUE = REFERENCE | {"queue_limit_jobs": 1}

MODES: dict[str, dict[str, Any]] = {
    "inline": ON_LOOP | NO_CACHE,
    "without the permit": FULL_QUEUE | {"stall_budget_s": 1e9, "fallback": "wait"},
    "wait": FULL_QUEUE | {"fallback": "wait"},
    "bail": FULL_QUEUE | {"fallback": "bail"},
    "as shipped": {},
}


class Burst(NamedTuple):
    """What bursts of one size did. frozen_ms: of each burst."""

    frozen_ms: list[float]
    phase: Phase


def size_of_a_miss() -> int:
    """Characters that the reference engines take about MISS_S for on this machine."""
    tokenizer = Tokenizer.load("demo", MODEL_FOLDER, fast=False)
    talk = workload.Conversations()
    spent_s = []
    size = 50_000
    for turn in range(6):
        body = talk.body(size, size // TURN_CHARS, f"calibrate {turn}")
        asked = msgspec.json.decode(body, type=ChatFields)
        began_s = time.thread_time()
        tokenizer.chat_ids(asked)
        spent_s.append(time.thread_time() - began_s)
    return int(size * MISS_S / min(spent_s))


def bursts(gateway: Watched, count: int, repeats: int, size: int, cores: tuple[int, int]) -> Burst:
    """So many bursts of `count` misses, GAP_S apart."""
    talk = workload.Conversations()
    at_s = [0.2 + GAP_S * turn for turn in range(repeats)]
    due_s = [at for at in at_s for _ in range(count)]
    bodies = [
        talk.body(size, max(1, size // TURN_CHARS), f"{count} {number}")
        for number in range(len(due_s))
    ]
    seconds_s = GAP_S * repeats + 0.2
    flows = [plain_flow(gateway, seconds_s, 200.0), given("misses", gateway, due_s, bodies)]
    got = phase(gateway, Plan(flows, linger_s=3.0), cores, seconds_s)
    frozen_ms = []
    for at in at_s:
        since_s = got.started_s + at - 0.05
        late_s = gateway.beats.late_s(since_s, since_s + GAP_S)
        frozen_ms.append(max(late_s, default=0.0) * 1e3)
    return Burst(frozen_ms, got)


HEADER = [
    "misses at once, mode", "frozen ms (median)", "max ms", "/health p50 ms", "p99 ms",
    "a miss, p50 ms", UNSERVED, "rungs",
]  # fmt: skip


def row(mode: str, count: int, got: Burst) -> list[Cell]:
    """A line of the table."""
    plain, misses = got.phase.flows["plain"], got.phase.flows["misses"]
    return [
        f"{count}, {mode}", median(got.frozen_ms), max(got.frozen_ms), plain.p50_ms, plain.p99_ms,
        misses.p50_ms, misses.unserved,
        ", ".join(f"{rung} {n:.0f}" for rung, n in got.phase.rungs.items()),
    ]  # fmt: skip


def run(options: Options) -> Finding:
    """All modes, both sizes of burst."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    facts = machine.facts()
    repeats = options.pick(1, 3, 15)
    names = options.pick(["without the permit", "bail"], list(MODES), list(MODES))
    size = size_of_a_miss()
    got: dict[tuple[int, str], Burst] = {}
    with Canned(free_ports(4), load_core) as canned:
        for mode in names:
            say(f"  burst, {mode}")
            with watched(mode, canned.urls, core, options, MODES[mode]) as gateway:
                bursts(gateway, 2, 1, size, cores)  # the ladder learns how fast it is
                for count in (5, 20):
                    got[count, mode] = bursts(gateway, count, repeats, size, cores)
    return finding(facts, names, got, size, repeats)


def finding(
    facts: dict[str, Any],
    names: list[str],
    got: dict[tuple[int, str], Burst],
    size: int,
    repeats: int,
) -> Finding:
    """The table, the bars, and whether the permit does what a permit is for."""
    frozen = {(count, mode): median(one.frozen_ms) for (count, mode), one in got.items()}
    loose_ms, bail_ms = frozen[20, "without the permit"], frozen[20, "bail"]
    five_ms = frozen[5, "without the permit"]
    wait_ms = frozen.get((20, "wait"))
    assert loose_ms is not None
    assert bail_ms is not None
    assert five_ms is not None
    bounded = bail_ms <= loose_ms / 4 and (wait_ms is None or wait_ms <= loose_ms / 4)
    return Finding(
        name="burst",
        title="misses in a row that the threads have no room for, under wait, bail and no permit",
        machine=facts,
        settings={"size_chars": size, "miss_s": MISS_S, "repeats": repeats},
        tables=[
            Table(
                "", HEADER,
                [row(mode, count, got[count, mode]) for count in (5, 20) for mode in names],
            )
        ],
        plots=[
            bars(
                f"the loop frozen by {count} misses at once",
                "ms",
                {mode: frozen[count, mode] for mode in names},
                log="y",
            )
            for count in (20, 5)
        ],
        published=[
            Beside("20 misses in a row on the loop", "200 ms frozen",
                   milliseconds(loose_ms) + " frozen"),
            Beside("five concurrent misses on one core", "50-65 ms", milliseconds(five_ms)),
        ],
        shapes=[
            Shape(
                "without the permit the freeze grows with the number of misses (4 x from 5 to 20)",
                2.0 <= loose_ms / max(five_ms, 1e-9) <= 8.0,
                times(loose_ms, five_ms),
            ),
            Shape(
                "with the permit it does not: at most a quarter of it, under wait and bail",
                bounded,
                f"wait {milliseconds(wait_ms)}, bail {milliseconds(bail_ms)}, "
                f"without {milliseconds(loose_ms)}",
            ),
        ],
        remarks=few(
            f"{count} at once, {remark}"
            for (count, _), one in got.items()
            for remark in one.phase.remarks
        ),
        numbers={f"{count} {mode} frozen ms": value for (count, mode), value in frozen.items()},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "burst")
