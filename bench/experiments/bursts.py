"""Small requests while bursts of long prompts arrive: the gateway beside its inline twin.

    python -m bench bursts [--smoke | --full] [--json FILE]

Each second 20 prompts of 100,000 fresh tokens arrive at once; beside them small chat requests at
100/s and the health endpoints, all open loop: a latency counts from the time at which the request
was due. The twin is the same gateway, but encodes where it stands, with `tokenizers`: so the
gateway is measured with that encoder too, and as shipped, with a quicker one. The gateway has one
core, the canned replicas and the load generator the other. `quiet` is the gateway without bursts.
"""

import time
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
from bench.tools.statistics import Cell
from bench.tools.systems import ON_LOOP, REFERENCE, Proxy, tuned

LINGER_S = 10.0
STEADY = ("small", "health", "livez")
# Settings of `tokens` by run. The last two differ by the place of encoding alone.
AS_SHIPPED = "tokenlane"
SAME_ENCODER, TWIN = "tokenlane with tokenizers", "inline twin"
RUNS: dict[str, dict[str, Any]] = {AS_SHIPPED: {}, SAME_ENCODER: REFERENCE, TWIN: ON_LOOP}


def plan(proxy: Proxy, seconds_s: int, burst: int, size_chars: int) -> Plan:
    """The flows of one run; no bursts when `burst` is 0."""
    assert proxy.admin_port is not None
    flows = [
        Flow("small", proxy.port, CHAT, evenly(100, seconds_s, 1), "small", 64, 300),
        Flow("health", proxy.port, "/health", evenly(20, seconds_s, 2), "none", 8),
        Flow("livez", proxy.admin_port, "/livez", evenly(20, seconds_s, 3), "none", 8),
    ]
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
    return Outcome(
        flows={flow: latency(calls, end_s) for flow, calls in result.calls.items()},
        silence_s={flow: silence_s(result.calls[flow], end_s) for flow in STEADY},
        late_ms=max(lateness_s(result.calls[flow]) for flow in STEADY) * 1e3,
        rungs=rungs,
        points=[(call.due_s, waited_s(call, end_s)) for call in small],
        remarks=[
            remark
            for remark in (limit_remark(name, result, STEADY), others_remark(name, others))
            if remark
        ],
    )


def measure(name: str, proxy: Proxy, what: Plan, cores: tuple[int, int]) -> Outcome:
    """One run against one proxy."""
    assert proxy.admin_port is not None
    say(f"  bursts, {name}")
    before = samples(proxy.admin_port)
    used_before_s, core_before_s = proxy.process.cpu_s(), core_used_s(cores[0])
    result = generate(what, cores[1])
    used_s, core_s = proxy.process.cpu_s() - used_before_s, core_used_s(cores[0]) - core_before_s
    after = samples(proxy.admin_port)
    rungs = difference(before, after, "tokenlane_tokenize_seconds_count", "rung")
    return outcome(name, result, rungs, max(0.0, core_s - used_s) / result.wall_s)


def run(seconds_s: int, burst: int, tokens: int) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    size_chars = chars_for(tokens)
    outcomes: dict[str, Outcome] = {}
    with Canned(free_ports(4), load_core) as canned:
        for name, settings in RUNS.items():
            with tuned(name, canned.urls, core, settings) as proxy:
                if name == AS_SHIPPED:
                    quiet = plan(proxy, min(5, seconds_s), 0, 0)
                    outcomes["quiet"] = measure("quiet", proxy, quiet, cores)
                busy = plan(proxy, seconds_s, burst, size_chars)
                outcomes[name] = measure(name, proxy, busy, cores)
    return {
        "bench": "bursts",
        "machine": machine.facts(),
        "settings": {
            "seconds": seconds_s,
            "burst": burst,
            "tokens": tokens,
            "chars": size_chars,
            "linger_s": LINGER_S,
        },
        "runs": {name: msgspec.to_builtins(one) for name, one in outcomes.items()},
    }


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
    dots = [
        Series(name, [(due_s, waited_s * 1e3) for due_s, waited_s in one["points"]])
        for name, one in result["runs"].items()
        if name != "quiet"
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
        },
    )


def experiment(options: Options) -> Finding:
    """The gateway, then its twin, at the scale asked for."""
    seconds_s, tokens = options.pick((1, 10_000), (6, 100_000), (15, 100_000))
    return finding(run(seconds_s, 20, tokens))


if __name__ == "__main__":
    main(experiment, __doc__, "bursts")
