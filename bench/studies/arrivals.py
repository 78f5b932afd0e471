"""Arrivals as bursty as real ones: long silences, and 67 requests in one second.

    python -m bench arrivals [--arrivals FILE] [--smoke | --full]

FILE is a public trace of arrivals, CSV with TIMESTAMP and ContextTokens (such as Azure's of 2023):
the stretch around its busiest second is replayed, time compressed, every prompt new and of its
length. Without it a made sequence of the same burstiness. The same requests evenly spread stand
beside it: what differs is the arrival process alone. So do a gateway that tokenizes inline, with
`tokenizers`, and one with that encoder that does not: those two differ by the place alone.
"""

import math
from typing import Any

from bench.loads import workload
from bench.loads.arrival_times import Arrival, busiest, made, read, window
from bench.loads.openloop import Plan
from bench.loads.phases import UNSERVED, Phase, given, phase, plain_flow
from bench.loads.prompts import chars_for
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Shape, Table, few, times
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.queueing import gaps_s, variation
from bench.tools.statistics import Cell
from bench.tools.systems import ON_LOOP, REFERENCE
from bench.tools.watched import Watched, watched

COMPRESSED = 4.0
# Settings of `tokens`.
SHIPPED, SAME_ENCODER, INLINE = "as shipped", "with tokenizers", "inline"
GATEWAYS: dict[str, dict[str, Any]] = {SHIPPED: {}, SAME_ENCODER: REFERENCE, INLINE: ON_LOOP}
# Whether the arrivals are spread evenly, by gateway.
RUNS = ((SHIPPED, False), (SHIPPED, True), (SAME_ENCODER, False), (INLINE, False))


def plan(
    gateway: Watched, asked: list[Arrival], nonce: str, seconds_s: float, *, even: bool
) -> Plan:
    """The requests at their times, or evenly spread over the same time."""
    talk = workload.Conversations()
    a_token = chars_for(1_000) / 1_000
    bodies = [
        talk.body(math.ceil(one.tokens * a_token), 1 + one.tokens // 500, f"{nonce} {number}")
        for number, one in enumerate(asked)
    ]
    step_s = seconds_s / len(asked)
    due_s = [number * step_s if even else one.due_s for number, one in enumerate(asked)]
    flows = [plain_flow(gateway, seconds_s), given("prompts", gateway, due_s, bodies)]
    return Plan(flows, linger_s=6.0)


HEADER = [
    "gateway, arrivals", "prompt p50 ms", "p99 ms", "/health p50 ms", "p99 ms", "late p99 ms",
    "late max ms", UNSERVED, "rungs",
]  # fmt: skip


def row(name: str, got: Phase) -> list[Cell]:
    """A line of the table."""
    prompts, plain = got.flows["prompts"], got.flows["plain"]
    return [
        name, prompts.p50_ms, prompts.p99_ms, plain.p50_ms, plain.p99_ms, got.late.p99_ms,
        got.late.max_ms, prompts.unserved,
        ", ".join(f"{rung} {n:.0f}" for rung, n in got.rungs.items()),
    ]  # fmt: skip


def run(options: Options) -> Finding:
    """Bursty and even as shipped, bursty with the same encoder off the loop and on it."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    facts = machine.facts()
    if options.arrivals is None:
        whole, source = made(), "made here"
    else:
        whole, source = read(options.arrivals), options.arrivals.name
    seconds_s = options.pick(0.6, 6.0, 60.0)
    kept = window(whole, seconds_s * COMPRESSED)
    asked = [Arrival(one.due_s / COMPRESSED, one.tokens) for one in kept]
    got: dict[str, Phase] = {}
    with Canned(free_ports(4), load_core) as canned:
        for name, even in RUNS:
            label = f"{name}, {'even' if even else 'bursty'}"
            say(f"  arrivals, {label}: {len(asked)} requests")
            with watched(name, canned.urls, core, options, GATEWAYS[name]) as gateway:
                made_plan = plan(gateway, asked, label, seconds_s, even=even)
                got[label] = phase(gateway, made_plan, cores, seconds_s)
    return finding(facts, source, whole, kept, got, seconds_s)


def finding(
    facts: dict[str, Any],
    source: str,
    whole: list[Arrival],
    kept: list[Arrival],
    got: dict[str, Phase],
    seconds_s: float,
) -> Finding:
    """The table, the burstiness, and what it costs."""
    spread = variation(gaps_s([one.due_s for one in whole])) or 0.0
    _, peak = busiest(whole)
    bursty, even = got[f"{SHIPPED}, bursty"], got[f"{SHIPPED}, even"]
    ladder, inline = got[f"{SAME_ENCODER}, bursty"], got[f"{INLINE}, bursty"]
    p99 = [one.flows["prompts"].p99_ms for one in (bursty, even)]
    plain = [one.flows["plain"].p99_ms for one in (ladder, inline)]
    return Finding(
        name="arrivals",
        title=f"arrivals as bursty as real ones: {len(kept)} requests ({source}), up to {peak} "
        f"within a second, {COMPRESSED:g} x compressed",
        machine=facts,
        settings={"source": source, "requests": len(kept), "peak_per_s": peak,
                  "gap_variation": spread, "compressed": COMPRESSED, "seconds": seconds_s},
        tables=[Table("", HEADER, [row(name, one) for name, one in got.items()])],
        plots=[
            Plot(
                title="requests in each second of the trace", x="s of the trace", y="requests",
                series=[Series("requests", _per_second(kept))],
            ),
            Plot(
                title="p99 by arrivals", x="", y="ms", kind="bars", log="y", labels=list(got),
                series=[
                    Series(flow, [(float(n), one.flows[flow].p99_ms or 0.0)
                                  for n, one in enumerate(got.values())])
                    for flow in ("prompts", "plain")
                ],
            ),
        ],
        shapes=[
            Shape("the same requests wait longer when they come in bursts",
                  None if p99[0] is None or p99[1] is None else p99[0] > 1.5 * p99[1],
                  f"p99 of prompts {times(p99[0], p99[1])} of evenly spread"),
            Shape("the ladder keeps bursts from those who need no tokenization, with the same "
                  "encoder",
                  None if plain[0] is None or plain[1] is None else plain[1] > 3 * plain[0],
                  f"/health p99 inline {times(plain[1], plain[0])} of the ladder's"),
        ],
        remarks=[
            f"gaps between arrivals vary by {math.sqrt(spread):.1f} times their mean (Poisson: 1)",
            *few(remark for one in got.values() for remark in one.remarks),
        ],
        numbers={"gap_variation": spread, "peak_per_s": float(peak)},
    )  # fmt: skip


def _per_second(arrivals: list[Arrival]) -> list[tuple[float, float]]:
    counts: dict[int, int] = {}
    for one in arrivals:
        counts[int(one.due_s)] = counts.get(int(one.due_s), 0) + 1
    return [(float(at), float(counts.get(at, 0))) for at in range(max(counts, default=0) + 1)]


if __name__ == "__main__":
    main(run, __doc__, "arrivals")
