"""How many cores, and how much memory, by context length and rate: the table of docs/deploy.md.

    python -m bench sizing [--smoke | --full] [--json FILE]

One gateway at a time on one core, canned replicas and the load generator on the other. For each
context length two loads, open loop at a fixed rate: the next turns of long conversations, whose
earlier turns are known, and prompts that are new as a whole. CPU is that of the gateway's whole
process tree, memory its proportional set at the end.

Invariants:
- Cores are what was measured times the rate, with half of each core left free; nothing is
  measured at the rates of the last columns, and the table says so.
"""

import time
from typing import NamedTuple

from bench.loads.generator import evenly, generate, latency, limit_remark
from bench.loads.openloop import Flow, Plan
from bench.loads.prompts import chars_for
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table
from bench.tools.processes import core_used_s, free_ports, need_tools, others_remark, say, two_cores
from bench.tools.statistics import Cell
from bench.tools.systems import Proxy, gateway

# Tokens of context, requests a second that one core can take with room, and kinds of load: the
# conversations have a hundred turns, which a short context does not.
LENGTHS = (
    (1_000, 100, ("long",)),
    (8_000, 40, ("turns", "long")),
    (32_000, 15, ("turns", "long")),
    (100_000, 5, ("turns", "long")),
)
SHOWN_RATES = (10, 100, 1000)
WARM_COUNT = 64
# Beyond half of a core waiting grows faster than load.
FREE_SHARE = 0.5
KINDS = {"turns": "next turns", "long": "new as a whole"}


class Run(NamedTuple):
    """What one load cost. cpu_s: a request; late: sentences on what disturbed it."""

    cpu_s: float
    p50_ms: float
    p99_ms: float
    failed: int
    memory_bytes: int
    remarks: list[str]


def cores_for(rate_per_s: float, cpu_s: float) -> float:
    """Cores for that rate, with FREE_SHARE of each left free."""
    return rate_per_s * cpu_s / (1 - FREE_SHARE)


def memory_bytes(proxy: Proxy) -> int:
    """The tree's memory, pages that are shared counted once."""
    return sum(int(one.memory_full_info().pss) for one in proxy.process.tree())


def _plan(proxy: Proxy, kind: str, size_chars: int, due_s: list[float]) -> Plan:
    body = "turns" if kind == "turns" else "long"
    flow = Flow(kind, proxy.port, CHAT, due_s, body, 8, size_chars)  # type: ignore[arg-type]
    return Plan([flow], linger_s=10.0, nonce=time.time_ns())


def measure(
    proxy: Proxy, kind: str, size_chars: int, rate: float, seconds_s: float, cores: tuple[int, int]
) -> Run:
    """One load, after a warm-up of its own kind."""
    warm = evenly(rate * 2, WARM_COUNT / (rate * 2), 7)
    generate(_plan(proxy, kind, size_chars, warm), cores[1])
    core_before_s, before_s = core_used_s(cores[0]), proxy.process.cpu_s()
    result = generate(_plan(proxy, kind, size_chars, evenly(rate, seconds_s, 1)), cores[1])
    used_s = proxy.process.cpu_s() - before_s
    others = max(0.0, core_used_s(cores[0]) - core_before_s - used_s) / result.wall_s
    calls = result.calls[kind]
    seen = latency(calls, result.wall_s)
    name = f"{KINDS[kind]}, {size_chars:,} characters"
    remarks = [limit_remark(name, result, [kind]), others_remark(name, others)]
    return Run(
        used_s / len(calls),
        seen.p50_ms or 0.0,
        seen.p99_ms or 0.0,
        seen.unserved,
        memory_bytes(proxy),
        [remark for remark in remarks if remark],
    )


def experiment(options: Options) -> Finding:
    """Every length, a gateway of its own for each."""
    need_tools("nginx", "taskset")
    cores = two_cores()
    seconds_s = options.pick(1.0, 6.0, 20.0)
    lengths = options.pick(LENGTHS[:1], LENGTHS, LENGTHS)
    rows: list[list[Cell]] = []
    remarks: list[str] = []
    with Canned(free_ports(4), cores[1]) as canned:
        for tokens, rate, kinds in lengths:
            with gateway(canned.urls, cores[0], plain=options.plain) as proxy:
                idle_bytes = memory_bytes(proxy)
                for kind in kinds:
                    words = KINDS[kind]
                    say(f"  sizing, {tokens:,} tokens, {words}")
                    run = measure(proxy, kind, chars_for(tokens), rate, seconds_s, cores)
                    remarks += run.remarks
                    rows.append(
                        [
                            f"{tokens:,} tokens, {words}", rate, run.cpu_s * 1e3, run.p50_ms,
                            run.p99_ms, run.failed, run.memory_bytes / 2**20,
                            *(cores_for(shown, run.cpu_s) for shown in SHOWN_RATES),
                        ]
                    )  # fmt: skip
                remarks.append(f"{tokens:,} tokens: {idle_bytes / 2**20:.0f} MiB before any load")
    header = [
        "context", "measured at /s", "CPU ms", "p50 ms", "p99 ms", "failed", "memory MiB",
        *(f"cores at {rate:,}/s" for rate in SHOWN_RATES),
    ]  # fmt: skip
    return Finding(
        name="sizing",
        title="cores and memory by context length and rate",
        machine=machine.facts(),
        settings={"seconds": seconds_s, "free share of a core": FREE_SHARE},
        tables=[Table("", header, rows)],
        plots=[],
        remarks=[*remarks, "cores at a rate: computed from the CPU of a request, half left free"],
        numbers={},
    )


if __name__ == "__main__":
    main(experiment, __doc__, "sizing")
