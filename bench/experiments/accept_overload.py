"""More new clients connect than the gateway itself can serve: with and without a limit.

    python -m bench accept_overload [--seconds S] [--rounds N] [--size BYTES]

Invariants:
- The capacity is found first, by clients that come again when they are answered; the load is a
  multiple of it, and open. Gateway and load have a core each, and take turns with nobody.
- Each prompt is new: what a request costs the gateway is most of what it costs to make one.
- Who is not answered within `PATIENCE_S` is lost.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from bench.loads import workload
from bench.loads.generator import evenly, poisson
from bench.loads.newcomers import Plan, Visit
from bench.tools.canned import Canned
from bench.tools.client import fetch
from bench.tools.paths import RESULTS
from bench.tools.processes import free_ports, module, two_cores
from bench.tools.statistics import quantile
from bench.tools.systems import Proxy, gateway

FACTORS = (0.9, 3.0)
CLOSED_COUNT = 32
CLOSED_S = 2.0
HEALTH_PER_S = 20.0
PATIENCE_S = 5.0
LIMITS = {"waits": "0", "refuses": "0.05"}


class Row(msgspec.Struct, frozen=True):
    """One load. Rates in clients/s, times in milliseconds. core: the gateway's share of it.
    per_core_s: served in a second of the gateway's CPU, as a share of that at capacity."""

    limit: str
    factor: float
    capacity_per_s: float
    offered_per_s: float
    served_per_s: float
    refused_per_s: float
    lost: int
    served_p50_ms: float | None
    served_p99_ms: float | None
    refused_p50_ms: float | None
    refused_p99_ms: float | None
    health_p99_ms: float | None
    late_p99_ms: float
    core: float
    per_core_s: float
    generator_late_p99_ms: float | None


def crowd(plan: Plan, core: int) -> list[Visit]:
    """All clients of a plan, on that core."""
    argv = ["taskset", "-c", str(core), *module("bench.loads.newcomers")]
    done = subprocess.run(argv, input=msgspec.json.encode(plan), capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=list[Visit])


def _waits_ms(visits: Sequence[Visit]) -> list[float]:
    return [((one.done_s or one.due_s + PATIENCE_S) - one.due_s) * 1e3 for one in visits]


def measure(
    limit: str, factor: float, proxy: Proxy, parts: workload.Parts, seconds: float, core: int
) -> Row:
    """One load on one gateway, its capacity found before."""
    number = int(time.monotonic() * 1e6)
    closed = Plan(
        proxy.port, parts, first=number, closed_count=CLOSED_COUNT, seconds=CLOSED_S,
        patience_s=PATIENCE_S,
    )  # fmt: skip
    cpu_s = proxy.process.cpu_s()
    whole = sum(one.status == 200 for one in crowd(closed, core))
    per_core_s = whole / (proxy.process.cpu_s() - cpu_s)
    capacity_per_s = whole / CLOSED_S
    plan = Plan(
        proxy.port, parts, first=number + 10**7, due_s=poisson(factor * capacity_per_s, seconds, 1),
        health_s=evenly(HEALTH_PER_S, seconds, 2), patience_s=PATIENCE_S,
    )  # fmt: skip
    cpu_s, began_s = proxy.process.cpu_s(), time.monotonic()
    visits = crowd(plan, core)
    cpu_s, wall_s = proxy.process.cpu_s() - cpu_s, time.monotonic() - began_s
    asked = [one for one in visits if not one.health]
    served = [one for one in asked if one.status == 200]
    refused = [one for one in asked if one.status == 503]
    served_ms, refused_ms = _waits_ms(served), _waits_ms(refused)
    stalls = json.loads(fetch(proxy.admin_port or 0, "/stalls").body)
    return Row(
        limit, factor, capacity_per_s,
        len(asked) / seconds, len(served) / seconds, len(refused) / seconds,
        len(asked) - len(served) - len(refused),
        quantile(served_ms, 0.5), quantile(served_ms, 0.99),
        quantile(refused_ms, 0.5), quantile(refused_ms, 0.99),
        quantile(_waits_ms([one for one in visits if one.health]), 0.99),
        stalls["workers"][0]["p99_s"] * 1e3,
        cpu_s / wall_s, len(served) / cpu_s / per_core_s,
        quantile([(one.came_s - one.due_s) * 1e3 for one in asked], 0.99),
    )  # fmt: skip


def main() -> int:
    """Print a table; exit code 1 where a client is lost with the limit on."""
    parser = argparse.ArgumentParser(prog="python -m bench accept_overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=16384, help="of a prompt, in characters")
    parser.add_argument("--plain", action="store_true", help="measure plain Python")
    given = parser.parse_args()
    load_core, core = two_cores()
    parts = workload.numbered(workload.said([("user", workload.varied(given.size, 1))]))
    rows = []
    print("          load  offered   served  refused  lost   served p50/p99    refused p50/p99 "
          "  health p99  late p99  core  per CPU s")  # fmt: skip
    for number in range(given.rounds):
        for limit in sorted(LIMITS, reverse=bool(number % 2)):
            for factor in FACTORS:
                flags = ("--server-accept-wait-limit-s", LIMITS[limit])
                with (
                    Canned(free_ports(4), load_core) as canned,
                    gateway(canned.urls, core, *flags, plain=given.plain) as proxy,
                ):
                    row = measure(limit, factor, proxy, parts, given.seconds, load_core)
                rows.append(row)
                _show(row)
    RESULTS.mkdir(exist_ok=True)
    made = json.dumps([msgspec.to_builtins(one) for one in rows], indent=1) + "\n"
    (RESULTS / "accept_overload.json").write_text(made, encoding="utf-8")
    return int(any(row.lost for row in rows if row.limit == "refuses"))


def _show(row: Row) -> None:
    def both(first: float | None, second: float | None) -> str:
        return "-" if first is None or second is None else f"{first:6.0f} / {second:5.0f} ms"

    print(
        f"{row.limit:>8} {row.factor:4.1f} x {row.offered_per_s:8.0f} {row.served_per_s:8.0f}"
        f" {row.refused_per_s:8.0f} {row.lost:5d} {both(row.served_p50_ms, row.served_p99_ms):>18}"
        f" {both(row.refused_p50_ms, row.refused_p99_ms):>18} {row.health_p99_ms or 0:8.0f} ms"
        f" {row.late_p99_ms:6.1f} ms {row.core:5.2f} {row.per_core_s:8.0%}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
