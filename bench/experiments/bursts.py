"""Small requests while bursts of long prompts arrive: the gateway beside aiohttp and its twin.

    python -m bench bursts [--smoke | --full] [--json FILE]

Each second 20 prompts of 100,000 fresh tokens arrive at once; beside them small chat requests at
100/s and the health endpoints, all open loop: a latency counts from the time at which the request
was due. The twin is the same gateway, but encodes where it stands, with `tokenizers`: so the
gateway is measured with that encoder too, and as shipped, with a quicker one. The gateway has one
core, the canned replicas and the load generator the other. `quiet` is a proxy without bursts: what
the small requests' p99 rises by from there is measured in alternated rounds, of the gateway and of
a plain aiohttp proxy, which reads no prompt.
"""

import time
from collections import defaultdict
from typing import Any

import msgspec

from bench.loads.generator import (
    Latency,
    evenly,
    generate,
    in_bursts,
    latency,
    lateness_s,
    limit_remark,
    silence_s,
    waited_s,
)
from bench.loads.openloop import Flow, Plan, Result
from bench.loads.prompts import chars_for
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Table
from bench.tools.processes import core_used_s, free_ports, need_tools, others_remark, say, two_cores
from bench.tools.scrape import difference, samples
from bench.tools.statistics import Cell, cell, median, minus
from bench.tools.systems import ON_LOOP, REFERENCE, Proxy, aiohttp_proxy, tuned

LINGER_S = 10.0
QUIET_S = 5
# Settings of `tokens` by run. The last two differ by the place of encoding alone.
AS_SHIPPED = "tokenlane"
SAME_ENCODER, TWIN = "tokenlane with tokenizers", "inline twin"
RUNS: dict[str, dict[str, Any]] = {AS_SHIPPED: {}, SAME_ENCODER: REFERENCE, TWIN: ON_LOOP}


def plan(proxy: Proxy, seconds_s: int, burst: int, size_chars: int) -> Plan:
    """The flows of one run; no bursts when `burst` is 0."""
    flows = [
        Flow("small", proxy.port, CHAT, evenly(100, seconds_s, 1), "small", 64, 300),
        Flow("health", proxy.port, "/health", evenly(20, seconds_s, 2), "none", 8),
    ]
    if proxy.admin_port is not None:
        due_s = evenly(20, seconds_s, 3)
        flows.append(Flow("livez", proxy.admin_port, "/livez", due_s, "none", 8))
    if burst:
        due_s = in_bursts(burst, seconds_s)
        flows.append(Flow("long", proxy.port, CHAT, due_s, "long", 2 * burst, size_chars))
    return Plan(flows, linger_s=LINGER_S, nonce=time.time_ns())


class Outcome(msgspec.Struct, frozen=True):
    """One proxy's run. late_ms: how late 1 % of the requests left the generator, or later."""

    flows: dict[str, Latency]
    silence_s: dict[str, float]
    late_ms: float
    rungs: dict[str, float]
    points: list[tuple[float, float]]
    remarks: list[str]


def outcome(name: str, result: Result, rungs: dict[str, float], others: float) -> Outcome:
    """What a run's calls say. points: (due, latency), both in seconds, of the small requests."""
    end_s = result.wall_s
    small = result.calls["small"]
    steady = [flow for flow in result.calls if flow != "long"]
    return Outcome(
        flows={flow: latency(calls, end_s) for flow, calls in result.calls.items()},
        silence_s={flow: silence_s(result.calls[flow], end_s) for flow in steady},
        late_ms=max(lateness_s(result.calls[flow]) for flow in steady) * 1e3,
        rungs=rungs,
        points=[(call.due_s, waited_s(call, end_s)) for call in small],
        remarks=[
            remark
            for remark in (limit_remark(name, result, steady), others_remark(name, others))
            if remark
        ],
    )


def measure(name: str, proxy: Proxy, what: Plan, cores: tuple[int, int]) -> Outcome:
    """One run against one proxy."""
    say(f"  bursts, {name}")
    before = samples(proxy.admin_port) if proxy.admin_port else {}
    used_before_s, core_before_s = proxy.process.cpu_s(), core_used_s(cores[0])
    result = generate(what, cores[1])
    used_s, core_s = proxy.process.cpu_s() - used_before_s, core_used_s(cores[0]) - core_before_s
    after = samples(proxy.admin_port) if proxy.admin_port else {}
    rungs = difference(before, after, "tokenlane_tokenize_seconds_count", "rung")
    return outcome(name, result, rungs, max(0.0, core_s - used_s) / result.wall_s)


def run(rounds: int, seconds_s: int, burst: int, tokens: int) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    size_chars = chars_for(tokens)
    outcomes: dict[str, Outcome] = {}
    rises_ms: dict[str, list[float | None]] = defaultdict(list)
    with Canned(free_ports(4), load_core) as canned:
        with (
            tuned(AS_SHIPPED, canned.urls, core, RUNS[AS_SHIPPED]) as ours,
            aiohttp_proxy(canned.urls, core) as plain,
        ):
            for turn in range(rounds):
                for proxy in (ours, plain) if turn % 2 else (plain, ours):
                    still = plan(proxy, min(QUIET_S, seconds_s), 0, 0)
                    quiet = measure(f"{proxy.name}, quiet", proxy, still, cores)
                    full = plan(proxy, seconds_s, burst, size_chars)
                    busy = measure(proxy.name, proxy, full, cores)
                    rises_ms[proxy.name].append(minus(p99_ms(busy), p99_ms(quiet)))
                    outcomes |= {f"{proxy.name}, quiet": quiet, proxy.name: busy}
        for name in (SAME_ENCODER, TWIN):
            with tuned(name, canned.urls, core, RUNS[name]) as proxy:
                full = plan(proxy, seconds_s, burst, size_chars)
                outcomes[name] = measure(name, proxy, full, cores)
    return {
        "bench": "bursts",
        "machine": machine.facts(),
        "settings": {
            "rounds": rounds,
            "seconds": seconds_s,
            "burst": burst,
            "tokens": tokens,
            "chars": size_chars,
            "linger_s": LINGER_S,
        },
        "runs": {name: msgspec.to_builtins(one) for name, one in outcomes.items()},
        "rises_ms": dict(rises_ms),
    }


def p99_ms(one: Outcome) -> float | None:
    """Return that of the small requests."""
    return one.flows["small"].p99_ms


def middle(rises_ms: list[float | None]) -> float | None:
    """Return the median of the rounds that have one."""
    return median([one for one in rises_ms if one is not None])


HEADER = [
    "run, flow", "requests", "p50 ms", "p99 ms", "max ms", "longest silence s", "not 200",
    "unanswered",
]  # fmt: skip


def finding(result: dict[str, Any]) -> Finding:
    """The table, every small request as a dot, and what disturbed the runs."""
    rows: list[list[Cell]] = []
    remarks = []
    for name, one in result["runs"].items():
        for flow, values in one["flows"].items():
            rows.append(
                [
                    f"{name}, {flow}", values["count"], values["p50_ms"], values["p99_ms"],
                    values["max_ms"], one["silence_s"].get(flow), values["failed"],
                    values["unanswered"],
                ]
            )  # fmt: skip
        counted = ", ".join(f"{rung} {count:,.0f}" for rung, count in one["rungs"].items() if count)
        remarks.append(
            f"{name}: rungs {counted or 'not known'}; generator {one['late_ms']:.2f} ms late"
        )
        remarks += one["remarks"]
    settings = result["settings"]
    for name, rises_ms in result["rises_ms"].items():
        remarks.append(
            f"{name}: p99 of small requests rises by {cell(middle(rises_ms))} ms beside the "
            f"bursts, the median of rounds ({', '.join(map(cell, rises_ms))})"
        )
    dots = [
        Series(name, [(due_s, waited_s * 1e3) for due_s, waited_s in one["points"]])
        for name, one in result["runs"].items()
        if not name.endswith(", quiet")
    ]
    return Finding(
        name="bursts",
        title=f"small requests at 100/s while {settings['burst']} prompts of "
        f"{settings['tokens']:,} tokens arrive each second",
        machine=result["machine"],
        settings=settings,
        tables=[Table("", HEADER, rows)],
        plots=[
            Plot(
                title="latency of each small request beside the bursts",
                x="time at which the request was due, s",
                y="ms",
                series=dots,
                kind="dots",
                log="y",
            )
        ],
        remarks=remarks,
        numbers={
            f"{name} small p99 ms": one["flows"]["small"]["p99_ms"]
            for name, one in result["runs"].items()
        }
        | {f"{name} rise ms": middle(given) for name, given in result["rises_ms"].items()},
    )


def experiment(options: Options) -> Finding:
    """The gateway beside aiohttp, then its twin, at the scale asked for."""
    rounds, seconds_s, tokens = options.pick((1, 1, 10_000), (1, 6, 100_000), (5, 15, 100_000))
    return finding(run(rounds, seconds_s, 20, tokens))


if __name__ == "__main__":
    main(experiment, __doc__, "bursts")
