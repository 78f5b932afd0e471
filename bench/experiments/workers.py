"""Several workers of one gateway: what a request costs, the more of them there are.

    python -m bench workers [--smoke | --full] [--json FILE]

Workers tell each other, through the supervisor, what they routed where. Each worker has a core of
its own, and the wrk and nginx that keep it busy another, where there are four cores or more (of a
core's two threads one is used, as far as the machine says which these are). On fewer, all workers
share one core and all that drives them the other: requests/s do not grow then, but the CPU of a
request shows what the workers cost each other.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil

from bench.loads.throughput_bodies import Load, loads
from bench.tools import machine, wrk
from bench.tools.canned import Canned
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Table
from bench.tools.processes import free_ports, need_tools, own_cores, say, two_cores
from bench.tools.statistics import Cell, median
from bench.tools.systems import Proxy, gateway

CONNECTIONS = 64
COUNTS = (1, 2, 4, 8)
NAMES = ("300 B", "300 B unique", "16 KiB code")
WARM_S = 3


class Round(msgspec.Struct, frozen=True):
    """A number of workers under one load. CPU per request of all workers, and of the supervisor."""

    workers: int
    requests_per_s: float
    worker_us: float
    supervisor_us: float
    p50_ms: float | None
    p99_ms: float
    errors: int


def places() -> tuple[list[int], list[int]]:
    """Cores of the workers, and of what drives each: all the same one where there are few."""
    cores = own_cores()
    if len(cores) < 4:
        core, load_core = two_cores()
        return [core] * COUNTS[2], [load_core] * COUNTS[2]
    return cores[::2][: len(cores) // 2], cores[1::2]


def cpu_s(process: psutil.Process) -> float:
    """User and system time of one process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(proxy: Proxy, scripts: Sequence[Path], cores: Sequence[int], seconds_s: int) -> Round:
    """One load by as many wrk as there are scripts, after a while of the same that warms caches."""

    def driven(seconds_s: int) -> list[wrk.Report]:
        def one(lane: int) -> wrk.Report:
            return wrk.run(
                proxy.url,
                scripts[lane],
                seconds_s=seconds_s,
                core=cores[lane],
                connections=CONNECTIONS,
            )

        with ThreadPoolExecutor(len(scripts)) as lanes:
            return list(lanes.map(one, range(len(scripts))))

    driven(min(WARM_S, seconds_s))
    supervisor, *workers = proxy.process.tree()
    before_s = cpu_s(supervisor), sum(map(cpu_s, workers))
    reports = driven(seconds_s)
    after_s = cpu_s(supervisor), sum(map(cpu_s, workers))
    requests = max(1, sum(one.requests for one in reports))
    return Round(
        workers=len(scripts),
        requests_per_s=sum(one.requests_per_s for one in reports),
        worker_us=(after_s[1] - before_s[1]) / requests * 1e6,
        supervisor_us=(after_s[0] - before_s[0]) / requests * 1e6,
        p50_ms=median([one.p50_s * 1e3 for one in reports]),
        p99_ms=max(one.p99_s * 1e3 for one in reports),
        errors=sum(one.errors + one.refused for one in reports),
    )


def run(counts: Sequence[int], seconds_s: int, plain: bool) -> dict[str, list[Round]]:
    """Rounds by load."""
    need_tools("nginx", "wrk", "taskset")
    proxy_cores, load_cores = places()
    chosen: list[Load] = [one for one in loads() if one.name in NAMES]
    done: dict[str, list[Round]] = {load.name: [] for load in chosen}
    turn = 0
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder, ExitStack() as stack:
        # As many replicas for each number of workers: a decision costs more, the more there are.
        canned = [stack.enter_context(Canned(free_ports(1), core)) for core in load_cores]
        urls = [url for one in canned for url in one.urls]
        for count in [one for one in counts if one <= len(proxy_cores)]:
            cores = ",".join(map(str, proxy_cores[:count]))
            with gateway(urls, cores, workers=count, plain=plain) as proxy:
                for load in chosen:
                    scripts = []
                    for _ in range(count):
                        turn += 1
                        scripts.append(Path(folder) / f"{turn}.lua")
                        scripts[-1].write_text(load.script(turn), encoding="ascii")
                    one = measure(proxy, scripts, load_cores, seconds_s)
                    done[load.name].append(one)
                    say(
                        f"  {load.name}, {count} workers: {one.requests_per_s:,.0f}/s, "
                        f"{one.worker_us:.0f} + {one.supervisor_us:.0f} us a request"
                    )
    return done


HEADER = ["load, workers", "req/s", "CPU us, workers", "supervisor", "p50 ms", "p99 ms", "errors"]


def experiment(options: Options) -> Finding:
    """All loads and numbers of workers at the scale asked for."""
    counts, seconds_s = options.pick((COUNTS[:2], 1), (COUNTS, 3), (COUNTS, 10))
    found = run(counts, seconds_s, options.plain)
    rows: list[list[Cell]] = [
        [
            f"{name}, {one.workers}", one.requests_per_s, one.worker_us, one.supervisor_us,
            one.p50_ms, one.p99_ms, one.errors,
        ]
        for name, rounds in found.items()
        for one in rounds
    ]  # fmt: skip
    shared = len(set(places()[0])) == 1
    return Finding(
        name="workers",
        title="several workers of one gateway",
        machine=machine.facts(),
        settings={"seconds": seconds_s, "connections": CONNECTIONS, "warm_s": WARM_S},
        tables=[Table("", HEADER, rows)],
        plots=[
            Plot(
                title="CPU of a request, workers and supervisor",
                x="workers",
                y="us",
                series=[
                    Series(
                        name,
                        [(one.workers, one.worker_us + one.supervisor_us) for one in rounds],
                    )
                    for name, rounds in found.items()
                ],
            )
        ],
        remarks=["all workers share one core: requests/s do not grow with them"] if shared else [],
        numbers={
            f"{name} CPU us, {one.workers} workers": one.worker_us + one.supervisor_us
            for name, rounds in found.items()
            for one in rounds
        },
    )


if __name__ == "__main__":
    main(experiment, __doc__, "workers")
