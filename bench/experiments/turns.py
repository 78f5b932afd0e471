"""Small requests while next turns of long conversations arrive in bursts, beside the same without.

    python -m bench turns [--smoke | --full]

Each second 20 requests of 390 KB arrive at once: turns 97 to 100 of 16 conversations of 100 turns
and 100k tokens, each with a question that is new. Beside them small chat requests at 100/s, open
loop. Runs with and without bursts take turns; the last column is what the bursts cost. The gateway
has one worker on one core, the canned replicas and the load generator the other.
"""

from typing import Any

from bench.experiments.bursts import Outcome, measure, plan
from bench.loads.generator import in_bursts
from bench.loads.openloop import Flow, Plan
from bench.loads.workload import CHAT, LONG_BYTES
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table
from bench.tools.processes import free_ports, need_tools, say, two_cores
from bench.tools.statistics import Cell, median, minus, ratio
from bench.tools.systems import Proxy, gateway

BURST = 20
WARM_S = 5


def with_turns(proxy: Proxy, seconds_s: int) -> Plan:
    """The small requests, and the bursts beside them."""
    quiet = plan(proxy, seconds_s, 0, 0)
    long = Flow(
        "long", proxy.port, CHAT, in_bursts(BURST, seconds_s), "turns", 2 * BURST, LONG_BYTES
    )
    return Plan([*quiet.flows, long], linger_s=quiet.linger_s, nonce=quiet.nonce)


def run(seconds_s: int, rounds: int) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    pairs: list[tuple[Outcome, Outcome]] = []
    with Canned(free_ports(4), load_core) as canned, gateway(canned.urls, core) as ours:
        measure("warm-up", ours, with_turns(ours, WARM_S), cores)
        for number in range(rounds):
            say(f"turns, round {number + 1} of {rounds}")
            quiet = measure("quiet", ours, plan(ours, seconds_s, 0, 0), cores)
            pairs.append((quiet, measure("bursts", ours, with_turns(ours, seconds_s), cores)))
    return {
        "machine": machine.facts(),
        "settings": {"seconds": seconds_s, "rounds": rounds, "burst": BURST, "bytes": LONG_BYTES},
        "pairs": pairs,
    }


HEADER = [
    "round", "quiet p50 ms", "quiet p99 ms", "bursts p50 ms", "bursts p99 ms", "p99 x quiet",
    "p99 more ms", "long p50 ms", "long p99 ms", "not 200", "unanswered",
]  # fmt: skip


def finding(result: dict[str, Any]) -> Finding:
    """A row for each round and the medians."""
    rows: list[list[Cell]] = []
    remarks: list[str] = []
    rungs: dict[str, float] = {}
    for number, (quiet, busy) in enumerate(result["pairs"], 1):
        small, long = busy.flows["small"], busy.flows["long"]
        before = quiet.flows["small"]
        rows.append(
            [
                str(number), before.p50_ms, before.p99_ms, small.p50_ms, small.p99_ms,
                ratio(small.p99_ms, before.p99_ms), minus(small.p99_ms, before.p99_ms),
                long.p50_ms, long.p99_ms, small.failed + long.failed,
                small.unanswered + long.unanswered,
            ]
        )  # fmt: skip
        remarks += [*quiet.remarks, *busy.remarks]
        for rung, count in busy.rungs.items():
            rungs[rung] = rungs.get(rung, 0.0) + count
    measured = list(zip(*rows, strict=True))[1:]
    middle = [median([float(one) for one in column if one is not None]) for column in measured]
    rows.append(["median", *middle])
    counted = ", ".join(f"{rung} {count:,.0f}" for rung, count in rungs.items() if count)
    return Finding(
        name="turns",
        title=f"small requests at 100/s while {BURST} next turns of 390 KB arrive each second",
        machine=result["machine"],
        settings=result["settings"],
        tables=[Table("", HEADER, rows)],
        remarks=[f"rungs beside the bursts: {counted}", *remarks],
        numbers={"quiet p99 ms": middle[1], "bursts p99 ms": middle[3]},
    )


def experiment(options: Options) -> Finding:
    """Rounds at the scale asked for."""
    return finding(run(*options.pick((1, 1), (10, 3), (60, 5))))


if __name__ == "__main__":
    main(experiment, __doc__, "turns")
