"""Overload: many times what a fleet can serve, offered to a gateway that limits what it takes on.

    python -m bench overload [--seconds S]       (`make overload`)

Invariants:
- The fleet is set to a capacity by time alone (places x tokens x interval), so the machine's speed
  is not what is measured; the load is open, and its own lateness is shown beside the result.
- Goodput is what was answered whole with 200 within `GOOD_S` of when it was due.
"""

import argparse
import json
import sys

import msgspec

from bench.loads.generator import generate, lateness_s, poisson
from bench.loads.openloop import Call, Flow, Plan
from bench.tools.paths import RESULTS
from bench.tools.systems import gateway
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess

FACTORS = (0.9, 2.0, 5.0, 10.0)
REPLICAS = 4
# 16 tokens (what a request of the workload asks for) take 0.4 s, 30 at a time in each replica.
PLACES = 30
INTERVAL_S = 0.025
CAPACITY_PER_S = REPLICAS * PLACES / (16 * INTERVAL_S)
GOOD_S = 2.0
LIMITS = (
    "--admission-concurrency-limit-count", str(REPLICAS * PLACES * 6 // 5),
    "--admission-queue-limit-count", "100",
    "--admission-queue-deadline-s", "1.0",
)  # fmt: skip


class Row(msgspec.Struct, frozen=True):
    """One load. Rates in requests/s, times in seconds; shed: answered 429 or 503."""

    factor: float
    offered_per_s: float
    goodput_per_s: float
    shed_per_s: float
    shed_p50_s: float
    shed_p99_s: float
    others: int
    generator_late_p99_s: float


def _at(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def row(factor: float, calls: list[Call], seconds: float) -> Row:
    """What became of the calls of a run."""
    good = [call for call in calls if call.served and call.done_s - call.due_s <= GOOD_S]
    shed = [call.done_s - call.fired_s for call in calls if call.status in (429, 503)]
    served = sum(call.served for call in calls)
    return Row(
        factor,
        len(calls) / seconds,
        len(good) / seconds,
        len(shed) / seconds,
        _at(shed, 0.5),
        _at(shed, 0.99),
        len(calls) - served - len(shed),
        lateness_s(calls),
    )


def measure(seconds: float) -> list[Row]:
    """All loads, one after the other, on one gateway."""
    flags = ("--running-limit", str(PLACES), "--token-interval-s", str(INTERVAL_S))
    rows = []
    with (
        FleetProcess(REPLICAS, free_ports(REPLICAS), flags) as fleet,
        gateway(fleet.urls, 0, *LIMITS, plain=True) as proxy,
    ):
        for number, factor in enumerate(FACTORS):
            due_s = poisson(factor * CAPACITY_PER_S, seconds, number)
            path = "/v1/chat/completions"
            flow = Flow("load", proxy.port, path, due_s, "small", warm_connections=300, size=300)
            calls = generate(Plan([flow], linger_s=3.0), core=1).calls["load"]
            rows.append(row(factor, calls, seconds))
    return rows


def main() -> int:
    """Prints a table; exit code 1 where goodput falls below 90 % of its best."""
    parser = argparse.ArgumentParser(prog="python -m bench overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    rows = measure(parser.parse_args().seconds)
    print(f"a fleet of {CAPACITY_PER_S:.0f} requests/s")
    print(" offered  goodput     shed  shed p50  shed p99  neither  generator late p99")
    for one in rows:
        print(
            f"{one.offered_per_s:8.0f} {one.goodput_per_s:8.0f} {one.shed_per_s:8.0f}"
            f" {one.shed_p50_s * 1e3:6.1f} ms {one.shed_p99_s * 1e3:6.1f} ms {one.others:8d}"
            f" {one.generator_late_p99_s * 1e3:10.1f} ms"
        )
    best = max(one.goodput_per_s for one in rows)
    least = min(one.goodput_per_s for one in rows if one.factor > 1)
    print(f"least goodput under overload: {least / best:.0%} of the best")
    RESULTS.mkdir(exist_ok=True)
    made = {"capacity_per_s": CAPACITY_PER_S, "rows": [msgspec.to_builtins(one) for one in rows]}
    (RESULTS / "overload.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return int(least < 0.9 * best)


if __name__ == "__main__":
    sys.exit(main())
