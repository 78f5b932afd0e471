"""The ladder, rung by rung: the same arrivals, each time with one more rung before the loop.

    python -m bench ablation [--smoke | --full]

Chats of about 2,000 tokens, known ones and new ones, at rising miss rates and rates, and 90 % hits
at 1,000/s. Beside them /health at 100/s, which needs no tokenization: whatever it waits for is the
loop. Every rung is the gateway itself, told by its settings how far up the ladder it may go; all
but the last encode with `tokenizers`, so that a row differs from the one above by its rung alone.
The last has a quicker encoder: it is shown, and compared with none of them.
"Without the permit" is the local rung with a stall budget that nothing exceeds: a job that is
started runs to its end on the loop.
"""

import itertools
import random
from typing import Any, NamedTuple

from bench.loads import workload
from bench.loads.generator import evenly
from bench.loads.openloop import Flow, Plan
from bench.loads.phases import UNSERVED, Phase, given, phase, plain_flow
from bench.loads.prompts import chars_for
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Shape, Table, few, times
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.statistics import Cell
from bench.tools.systems import ON_LOOP, REFERENCE
from bench.tools.watched import Watched, watched

TOKENS, TURNS, KNOWN = 2_000, 8, 16
NO_CACHE = {"cache_limit_bytes": 0}
# Queues as short as the phases are: else nothing would overflow before the load is over.
NARROW = REFERENCE | {"queue_wait_limit_s": 0.1, "queue_limit_jobs": 32}
UNPERMITTED = NARROW | {"stall_budget_s": 1e9, "fallback": "wait"}
# And a process that is given few prompts at a time, for the same reason.
PROCESSES = {"processes": 1, "process_limit_bytes": 65_536}

RUNGS: dict[str, dict[str, Any]] = {
    "inline": ON_LOOP | NO_CACHE,
    "+ cache": ON_LOOP,
    "+ threads": UNPERMITTED,
    "+ processes": UNPERMITTED | PROCESSES,
    "+ permit": NARROW | PROCESSES,
    "as shipped": {},
}
# What each row adds: where that takes no job in it and in the one above, the two are the same
# gateway. Who gets no permit is sent on without ids.
TAKES: dict[str, tuple[str, ...]] = {
    "+ cache": ("cache",),
    "+ threads": ("threads",),
    "+ processes": ("processes",),
    "+ permit": ("local", "bail"),
}
LEAST_NOISE = 0.0025


class Load(NamedTuple):
    """A phase: chats a second, and the share of them that is new."""

    per_s: int
    missing: float

    def __str__(self) -> str:
        return f"{self.per_s}/s, {self.missing:.0%} new"


SHORT = (Load(100, 0.1), Load(300, 0.5), Load(600, 1.0), Load(1000, 0.1))
FULL = tuple(Load(rate, miss) for rate in (100, 300, 600) for miss in (0.1, 0.5, 1.0))


def flows(load: Load, gateway: Watched, seconds_s: float, known: list[bytes], size: int) -> Plan:
    """The arrivals of a phase: the same for every gateway, down to the bytes."""
    due_s = evenly(load.per_s, seconds_s, load.per_s)
    chooser = random.Random(f"{load}")
    new = [chooser.random() < load.missing for _ in due_s]
    talk = workload.Conversations()
    fresh = [talk.body(size, TURNS, f"{load} {index}") for index in range(sum(new))]
    split: dict[str, list[float]] = {"hits": [], "misses": []}
    for at_s, miss in zip(due_s, new, strict=True):
        split["misses" if miss else "hits"].append(at_s)
    made: list[Flow] = [plain_flow(gateway, seconds_s)]
    if split["hits"]:
        made.append(given("hits", gateway, split["hits"], known))
    if split["misses"]:
        made.append(given("misses", gateway, split["misses"], fresh))
    return Plan(made, linger_s=2.0)


def warm_plan(gateway: Watched, known: list[bytes]) -> Plan:
    """Every known chat once."""
    return Plan([given("hits", gateway, [0.03 * n for n in range(len(known))], known)])


def row(rung: str, load: Load, got: Phase) -> list[Cell]:
    """A line of the table."""
    chats = [one for name, one in got.flows.items() if name != "plain"]
    plain = got.flows["plain"]
    return [
        f"{rung}, {load}",
        got.late.p50_ms,
        got.late.p99_ms,
        got.late.max_ms,
        got.late.blocked,
        plain.p50_ms,
        plain.p99_ms,
        sum(rate for name, rate in got.per_s.items() if name != "plain"),
        sum(one.unserved for one in chats),
        ", ".join(f"{rung} {count:.0f}" for rung, count in got.rungs.items()),
    ]


HEADER = [
    "ladder up to, load", "late p50 ms", "p99 ms", "max ms", "share of time late > 5 ms",
    "/health p50 ms", "p99 ms", "chats/s", UNSERVED, "rungs",
]  # fmt: skip


def run(options: Options) -> Finding:
    """All rungs under all loads."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    loads = options.pick((Load(100, 0.5),), SHORT, (*FULL, Load(1000, 0.1)))
    seconds_s = options.pick(0.3, 1.6, 5.0)
    facts = machine.facts()
    size = chars_for(TOKENS)
    known = [workload.Conversations(1).body(size, TURNS, f"known {n}") for n in range(KNOWN)]
    got: dict[tuple[str, Load], Phase] = {}
    names = options.pick(["inline", "+ permit", "as shipped"], list(RUNGS), list(RUNGS))
    with Canned(free_ports(4), load_core) as canned:
        for rung in names:
            say(f"  ablation, {rung}")
            with watched(rung, canned.urls, core, options, RUNGS[rung]) as gateway:
                phase(gateway, warm_plan(gateway, known), cores, 1.0)
                for load in loads:
                    plan = flows(load, gateway, seconds_s, known, size)
                    got[rung, load] = phase(gateway, plan, cores, seconds_s)
    return finding(options, facts, names, loads, got, seconds_s)


def finding(
    options: Options,
    facts: dict[str, Any],
    names: list[str],
    loads: tuple[Load, ...],
    got: dict[tuple[str, Load], Phase],
    seconds_s: float,
) -> Finding:
    """The tables, the curves and whether each rung frees the loop."""
    worst = {name: max(got[name, load].late.blocked for load in loads) for name in names}
    rungs = same_encoder(names)
    mean = {name: sum(got[name, load].late.blocked for load in loads) for name in rungs}
    first, last = rungs[0], rungs[-1]
    freed, noise = frees(rungs, loads, got)
    seen = ", ".join(f"{name} {mean[name] / len(loads):.1%}" for name in rungs)
    hardest = loads[-1]
    p99 = {name: got[name, hardest].flows["plain"].p99_ms for name in names}
    return Finding(
        name="ablation",
        title="the ladder rung by rung, the same arrivals for each",
        machine=facts,
        settings={
            "scale": options.scale,
            "tokens": TOKENS,
            "turns": TURNS,
            "known": KNOWN,
            "seconds": seconds_s,
            "rungs": {name: RUNGS[name] for name in names},
        },
        tables=[
            Table(str(load), HEADER, [row(name, load, got[name, load]) for name in names])
            for load in loads
        ],
        plots=[
            _plot("/health p99 beside the chats", "ms", names, loads, got, plain=True),
            _plot("loop late by, p99", "ms", names, loads, got, plain=False),
        ],
        shapes=[
            Shape(
                "each rung leaves the loop at least as free as the one before "
                "(share of time in stalls above 5 ms)",
                freed,
                f"{seen}; rows that are the same gateway differ by up to {noise:.1%}",
            ),
            Shape(
                f"at {hardest} the whole ladder answers /health ten times sooner than inline, "
                "with the same encoder",
                None
                if p99[first] is None or p99[last] is None
                else (p99[first] or 0) >= 10 * (p99[last] or 0),
                f"p99 {times(p99[first], p99[last])}",
            ),
        ],
        remarks=few(
            f"{load}: {remark}" for (_, load), one in got.items() for remark in one.remarks
        ),
        numbers={f"{name} blocked": share for name, share in worst.items()},
    )


def same_encoder(names: list[str]) -> list[str]:
    """Return the rows that encode as the first one does: they differ by their rungs alone."""
    encoders = {name: RUNGS[name].get("fast_engines") for name in names}
    return [name for name in names if encoders[name] == encoders[names[0]]]


def frees(
    names: list[str], loads: tuple[Load, ...], got: dict[tuple[str, Load], Phase]
) -> tuple[bool | None, float]:
    """Whether each rung frees the loop under the loads in which it takes jobs, and by how much two
    rows differ where it takes none: that is the machine's doing."""
    freed, same = [], [LEAST_NOISE]
    for before, after in itertools.pairwise(names):
        takers = TAKES.get(after)
        used = [
            load
            for load in loads
            if takers is None
            or any(got[name, load].rungs.get(rung) for rung in takers for name in (before, after))
        ]
        same += [
            abs(got[after, load].late.blocked - got[before, load].late.blocked)
            for load in loads
            if load not in used
        ]
        if used:
            mean = [
                sum(got[name, load].late.blocked for load in used) / len(used)
                for name in (before, after)
            ]
            freed.append(mean)
    noise = max(same)
    holds = all(after <= before * 1.25 + noise for before, after in freed) if freed else None
    return holds, noise


def _plot(
    title: str,
    unit: str,
    names: list[str],
    loads: tuple[Load, ...],
    got: dict[tuple[str, Load], Phase],
    *,
    plain: bool,
) -> Plot:
    series = []
    for load in loads:
        points = []
        for index, name in enumerate(names):
            one = got[name, load]
            value = one.flows["plain"].p99_ms if plain else one.late.p99_ms
            points.append((float(index), value or 0.0))
        series.append(Series(str(load), points))
    return Plot(title=title, x="", y=unit, series=series, kind="bars", log="y", labels=names)


if __name__ == "__main__":
    main(run, __doc__, "ablation")
