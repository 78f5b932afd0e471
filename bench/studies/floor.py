"""The HTTP floor: what the gateway adds where nothing is tokenized, and waiting by utilisation.

    python -m bench floor [--smoke | --full]

400 connections send a chat of 100 turns, each known to the cache, all at the same moment and then
spread over a second; the time added is a quantile through the proxy less the same quantile straight
to the replica. Then Poisson arrivals at rising utilisation: the mean wait, beside that of Kingman's
formula.

A request costs less of the core the busier that is: caches stay warm, turns of the loop are shared.
So the load that is aimed at is a share of what a nearly full gateway serves, and each point's
service time and utilisation are its own: CPU a request, and CPU a second. A request that met nobody
waited for nobody: the wait is what the mean of all is above the mean of those, in the same run. The
service time's variation is that of the latencies of an idle gateway. Only whole answers with 200
count as served: the CPU of a run is theirs, and who was refused waited to the end of it.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Any, NamedTuple

from bench.loads import workload
from bench.loads.generator import (
    evenly,
    failure_remark,
    generate,
    limit_remark,
    poisson,
    waited_s,
)
from bench.loads.openloop import Call, Flow, Plan, Result
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, few, milliseconds
from bench.tools.processes import (
    BenchError,
    Process,
    core_used_s,
    free_ports,
    need_tools,
    others_remark,
    say,
    two_cores,
)
from bench.tools.queueing import gaps_s, kingman_s, met_nobody, variation
from bench.tools.statistics import Cell, minus, quantile
from bench.tools.systems import aiohttp_proxy
from bench.tools.watched import watched

CONNECTIONS, TURNS, TOKENS_CHARS = 400, 100, 20_000
KNOWN = 16
PUBLISHED_MS = 1_000.0
UTILISATIONS = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92)
# More than any gateway serves on one core.
# Where the search for the load that fills a core begins, and the share that it aims at: a gateway
# with more than it can serve pays for connections instead of requests.
FIRST_PER_S, FILLED, SEARCHES = 4_000.0, 0.9, 3


class Door(NamedTuple):
    """Something that answers on a port; process: whose CPU counts."""

    name: str
    port: int
    process: Process


class Sample(NamedTuple):
    """One run: how many requests were served, latencies of all in ms, those of requests that met
    nobody, and seconds of CPU."""

    served: int
    waited_ms: list[float]
    unmet_ms: list[float]
    cpu_s: float
    wall_s: float
    remarks: list[str]


def send(door: Door, due_s: list[float], connections: int, cores: tuple[int, int]) -> Sample:
    """Known chats at these times."""
    talk = workload.Conversations()
    bodies = [talk.body(TOKENS_CHARS, TURNS, f"known {n}") for n in range(KNOWN)]
    flow = Flow("chats", door.port, CHAT, due_s, "given", connections, bodies=bodies)
    cpu_s, core_s = door.process.cpu_s(), core_used_s(cores[0])
    result: Result = generate(Plan([flow], linger_s=10.0), cores[1])
    cpu_s, core_s = door.process.cpu_s() - cpu_s, core_used_s(cores[0]) - core_s
    own_s = 0.0 if door.name == "direct" else cpu_s
    calls = result.calls["chats"]
    failures = failure_remark(calls)
    found = (limit_remark(door.name, result, ["chats"]),
             failures and f"{door.name}: {failures}",
             others_remark(door.name, max(0.0, core_s - own_s) / result.wall_s))  # fmt: skip
    return sample(door.name, calls, result.wall_s, cpu_s, [one for one in found if one])


def sample(name: str, calls: list[Call], wall_s: float, cpu_s: float, remarks: list[str]) -> Sample:
    """Return what a run's calls say. Raise BenchError where none was served."""
    served = sum(call.served for call in calls)
    if not served:
        raise BenchError(f"{name} answered no request with 200")
    waits_s = [(call.due_s, waited_s(call, wall_s)) for call in calls]
    unmet = met_nobody([(due_s, due_s + wait_s) for due_s, wait_s in waits_s])
    waited_ms = [wait_s * 1e3 for _, wait_s in waits_s]
    unmet_ms = list(itertools.compress(waited_ms, unmet))
    return Sample(served, waited_ms, unmet_ms, cpu_s, wall_s, remarks)


class Added(NamedTuple):
    """Of one door, at once and spread: p50 and p99 in ms."""

    once: tuple[float | None, float | None]
    spread: tuple[float | None, float | None]
    remarks: list[str]


def added(door: Door, repeats: int, connections: int, cores: tuple[int, int]) -> Added:
    """400 at the same moment, several times, and then as many evenly over as many seconds."""
    send(door, evenly(200, 0.3, 1), 8, cores)
    at_once = [0.2 + 1.5 * turn for turn in range(repeats) for _ in range(connections)]
    once = send(door, at_once, connections, cores)
    spread = send(door, evenly(connections, float(repeats), 2), connections, cores)
    return Added(
        (quantile(once.waited_ms, 0.5), quantile(once.waited_ms, 0.99)),
        (quantile(spread.waited_ms, 0.5), quantile(spread.waited_ms, 0.99)),
        spread.remarks,  # all at once, the generator is late by design: it sends one by one
    )


class Point(NamedTuple):
    """One utilisation: aimed at, reached; a request's CPU, the mean wait measured and Kingman's,
    in ms."""

    aimed: float
    reached: float
    per_s: float
    service_ms: float
    waited_ms: float
    kingman_ms: float | None
    remarks: list[str]


def curve(
    door: Door, aims: tuple[float, ...], seconds_s: float, cores: tuple[int, int]
) -> tuple[float, float, list[Point]]:
    """Service time in ms where it is shortest, its variation, and the points of the curve."""
    idle = send(door, evenly(40, max(1.0, seconds_s), 5), 8, cores)
    spread = variation(idle.waited_ms) or 0.0
    rate_per_s, shortest_s = FIRST_PER_S, math.inf
    for _ in range(SEARCHES):
        filled = send(door, evenly(rate_per_s, max(0.2, seconds_s / 4), 6), 256, cores)
        shortest_s = min(shortest_s, filled.cpu_s / filled.served)
        rate_per_s = FILLED / shortest_s
    points = []
    for aim in aims:
        due_s = poisson(aim / shortest_s, seconds_s, int(aim * 100))
        got = send(door, due_s, 256, cores)
        service_s = got.cpu_s / got.served
        reached = got.cpu_s / seconds_s
        kingman = kingman_s(reached, variation(gaps_s(due_s)) or 1.0, spread, service_s)
        points.append(
            Point(
                aim, reached, got.served / seconds_s, service_s * 1e3, waiting_ms(got),
                None if kingman is None else kingman * 1e3,
                got.remarks,
            )
        )  # fmt: skip
    return shortest_s * 1e3, spread, points


def waiting_ms(sample: Sample) -> float:
    """The mean wait: above what a request takes that meets nobody."""
    return mean(sample.waited_ms) - mean(sample.unmet_ms)


@contextmanager
def doors(canned: Canned, core: int, options: Options) -> Iterator[list[Door]]:
    """Straight to the replica, through the gateway, and through plain aiohttp."""
    with (
        watched("tokenlane", canned.urls, core, options) as ours,
        aiohttp_proxy(canned.urls, core) as plain,
    ):
        yield [
            Door("direct", canned.ports[0], canned.process),
            Door("tokenlane", ours.port, ours.proxy.process),
            Door("aiohttp", plain.port, plain.process),
        ]


def run(options: Options) -> Finding:
    """The floor of each door, and the curve of the gateway."""
    need_tools("nginx", "taskset")
    cores = core, load_core = two_cores()
    facts = machine.facts()
    connections = options.pick(50, CONNECTIONS, CONNECTIONS)
    repeats = options.pick(1, 2, 10)
    floors: dict[str, Added] = {}
    with Canned(free_ports(4), load_core) as canned, doors(canned, core, options) as all_doors:
        for door in all_doors:
            say(f"  floor, {door.name}")
            floors[door.name] = added(door, repeats, connections, cores)
        say("  floor, utilisation")
        aims = options.pick((0.3,), UTILISATIONS, UTILISATIONS)
        service = curve(all_doors[1], aims, options.pick(0.5, 2.0, 10.0), cores)
    return finding(facts, connections, floors, service)


def finding(
    facts: dict[str, Any],
    connections: int,
    floors: dict[str, Added],
    service: tuple[float, float, list[Point]],
) -> Finding:
    """What each door adds, the curve, and whether waiting grows as Kingman says."""
    direct = floors["direct"]
    rows: list[list[Cell]] = []
    adds: dict[str, list[float | None]] = {}
    for name, one in floors.items():
        adds[name] = [
            minus(own, base)
            for own, base in zip(
                (*one.once, *one.spread), (*direct.once, *direct.spread), strict=True
            )
        ]
        rows.append([name, *one.once, *one.spread, *adds[name]])
    service_ms, spread, points = service
    curve_rows: list[list[Cell]] = [
        [f"{one.aimed:.0%}", one.reached, one.per_s, one.service_ms, one.waited_ms, one.kingman_ms]
        for one in points
    ]
    first, last = points[0], points[-1]
    inner = [one for one in points if one.kingman_ms and one.reached <= 0.9]
    near = [one.waited_ms / one.kingman_ms for one in inner if one.kingman_ms]
    ours = adds["tokenlane"]
    return Finding(
        name="floor",
        title=f"the HTTP floor: {connections} connections, bodies of {TURNS} turns, nothing to "
        "tokenize",
        machine=facts,
        settings={"connections": connections, "turns": TURNS, "body_chars": TOKENS_CHARS,
                  "service_ms": service_ms, "service_variation": spread},
        tables=[
            Table(
                "latency and what is added to the direct one, ms",
                ["through", "at once p50", "p99", "spread p50", "p99", "added at once p50", "p99",
                 "added spread p50", "p99"],
                rows,
            ),
            Table(
                f"waiting by utilisation: nearly full, a request costs {service_ms:.3f} ms of the "
                f"core; squared variation {spread:.2f}",
                ["aimed at", "of its core", "requests/s", "CPU ms", "waited ms", "Kingman ms"],
                curve_rows,
            ),
        ],
        plots=[
            Plot(
                title="mean wait by utilisation", x="utilisation", y="ms", log="y",
                series=[
                    Series("measured", [(one.reached, one.waited_ms) for one in points]),
                    Series("Kingman", [(one.reached, one.kingman_ms) for one in points
                                       if one.kingman_ms is not None]),
                ],
            )
        ],
        published=[
            Beside(f"added at {CONNECTIONS} connections, all at once, p50 -> p99",
                   f"~{PUBLISHED_MS:,.0f} ms", milliseconds(ours[0], ours[1])),
            Beside("the same, spread over the second, p50 -> p99", "-",
                   milliseconds(ours[2], ours[3])),
        ],
        shapes=[
            Shape("waiting bends upward: the last step of utilisation costs most",
                  last.waited_ms > 3 * max(first.waited_ms, 0.01) if len(points) > 2 else None,
                  f"{first.reached:.0%} {first.waited_ms:.2f} ms, "
                  f"{last.reached:.0%} {last.waited_ms:.2f} ms"),
            Shape("and stays within a factor of four of Kingman's formula up to 90 %",
                  all(0.25 <= one <= 4 for one in near) if near else None,
                  "measured over Kingman " + ", ".join(f"{one:.2f}" for one in near)),
        ],
        remarks=few(
            [remark for floor in floors.values() for remark in floor.remarks]
            + [remark for point in points for remark in point.remarks]
        ),
        numbers={"added p99 ms": ours[1], "added spread p99 ms": ours[3]},
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "floor")
