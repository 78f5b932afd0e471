"""Requests per second of one core: the gateway beside a plain aiohttp proxy, in one run.

    python -m bench throughput [--smoke | --full] [--json FILE]

The proxy under test has one core; wrk (-t1 -c32) and nginx, which answers with a canned
completion on four ports, have the other. Tokenization and the policy `affinity` are on in the
gateway, which is measured compiled (setup.py) and, on the first load, as plain Python. Beside it
stand a pipe that reads nothing, and the routers of SGLang and vLLM where they are installed
(`make bench-routers`), with their policy `cache_aware`. The proxies take turns, and the order of a
round is the reverse of the one before.

Every load is sent as fast as each proxy can take it, and a proxy is told by its CPU a request. With
`--full` (half an hour) the routers take part, some loads are sent at half of that, too, and each is
sent for a minute to a gateway just started: the last third of that time stands beside the first,
with the memory that it has then.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench.loads import workload
from bench.loads.throughput_bodies import Load, loads
from bench.loads.workload import CHAT
from bench.tools import machine, wrk
from bench.tools.canned import Canned
from bench.tools.client import fetch
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table, bars
from bench.tools.processes import (
    core_used_s,
    free_ports,
    need_tools,
    others_remark,
    pause,
    say,
    two_cores,
)
from bench.tools.scrape import difference, samples
from bench.tools.statistics import Cell, median, ratio
from bench.tools.systems import Proxy, aiohttp_proxy, gateway, pipe, router, routers

UNCOMPILED = "tokenlane-plain"
CONNECTIONS = 32
BUSY_SHARE = 0.85
MIB = 1024 * 1024
HALVED = ("300 B", "16 KiB code")
THIRDS = 3
# A gateway without load takes a little more memory in its first seconds: readings to show.
SETTLED_S = 15.0


class Round(msgspec.Struct, frozen=True):
    """One run of wrk. Shares of the proxy's core (1.0 = all): its own, and other processes'."""

    proxy: str
    report: wrk.Report
    cpu_us: float
    share: float
    others: float


class Scale(msgspec.Struct, frozen=True):
    """How long it takes. half_s: at half load; long_s: of the long run of each load; 0: left out.
    routers: those of others, too."""

    rounds: int
    seconds_s: int
    half_s: int = 0
    long_s: int = 0
    routers: bool = False


SCALES = (Scale(1, 1), Scale(2, 1), Scale(9, 4, half_s=5, long_s=60, routers=True))


class Wrk:
    """Runs of one machine. cores: that of the proxies, and that of wrk and nginx."""

    def __init__(self, folder: Path, cores: tuple[int, int]) -> None:
        self._script = folder / "load.lua"
        self._core, self._load_core = cores
        self._turn = 0

    def run(self, load: Load, proxy: Proxy, seconds_s: int, pause_ms: int = 0) -> Round:
        """One run against one proxy; as fast as it can where there is no pause."""
        self._turn += 1
        script = load.script(self._turn)
        if pause_ms:
            script = wrk.with_pauses(script, pause_ms)
        self._script.write_text(script, encoding="ascii")
        before_s, core_before_s = proxy.process.cpu_s(), core_used_s(self._core)
        started_s = time.monotonic()
        report = wrk.run(
            proxy.url,
            self._script,
            seconds_s=seconds_s,
            core=self._load_core,
            connections=CONNECTIONS,
        )
        used_s = proxy.process.cpu_s() - before_s
        core_s = core_used_s(self._core) - core_before_s
        wall_s = time.monotonic() - started_s
        return Round(
            proxy=proxy.name,
            report=report,
            cpu_us=used_s / max(1, report.requests) * 1e6,
            share=used_s / wall_s,
            others=max(0.0, core_s - used_s) / wall_s,
        )

    def rounds(self, load: Load, proxies: list[Proxy], rounds: int, seconds_s: int) -> list[Round]:
        """Alternated rounds, after a short one per proxy that warms it and is thrown away."""
        done = []
        for index in range(rounds + 1):
            for proxy in proxies if index % 2 else proxies[::-1]:
                one = self.run(load, proxy, seconds_s if index else 1)
                if index:
                    done.append(one)
                    rate = one.report.requests_per_s
                    say(f"  {load.name} round {index}/{rounds} {proxy.name}: {rate:,.0f}/s")
        return done


def summary(name: str, rounds: list[Round]) -> dict[str, Any]:
    """Medians of one proxy's rounds, and whether it was the limit in them."""
    own = [one for one in rounds if one.proxy == name]
    return {
        "requests_per_s": median([one.report.requests_per_s for one in own]),
        "rounds": [one.report.requests_per_s for one in own],
        "p50_ms": median([one.report.p50_s * 1e3 for one in own]),
        "p99_ms": median([one.report.p99_s * 1e3 for one in own]),
        "cpu_us": median([one.cpu_us for one in own]),
        "core_share": median([one.share for one in own]),
        "others_share": median([one.others for one in own]),
        "errors": sum(one.report.errors + one.report.refused for one in own),
    }


def halved(runs: Wrk, load: Load, proxies: list[Proxy], full: Any, seconds_s: int) -> Any:
    """Each proxy at about half of the requests that it can serve, by pauses on its connections."""
    done = {}
    for proxy in proxies:
        turn_ms = 2 * CONNECTIONS / full[proxy.name]["requests_per_s"] * 1e3
        pause_ms = max(1, round(turn_ms - full[proxy.name]["p50_ms"] / 2))
        one = runs.run(load, proxy, seconds_s, pause_ms)
        done[proxy.name] = summary(proxy.name, [one])
    return done


def memory_mib(proxy: Proxy) -> tuple[float, float]:
    """What its processes have of memory, and what of it the account says is kept."""
    assert proxy.admin_port is not None
    # Asked first: the first answer of the admin port takes memory that no load takes.
    said = difference({}, samples(proxy.admin_port), "tokenlane_memory_bytes", "part")
    held = sum(one.memory_info().rss for one in proxy.process.tree())
    return held / MIB, sum(said.values()) / MIB


def sustained(runs: Wrk, load: Load, ours: Proxy, seconds_s: int) -> dict[str, Any]:
    """A load for longer: the first and the last third of its time, and memory."""
    pause(SETTLED_S)
    idle_mib, _ = memory_mib(ours)
    thirds = [
        summary(ours.name, [runs.run(load, ours, max(1, seconds_s // THIRDS))])
        for _ in range(THIRDS)
    ]
    held_mib, account_mib = memory_mib(ours)
    return {
        "first": thirds[0],
        "last": thirds[-1],
        "idle_mib": idle_mib,
        "held_mib": held_mib,
        "account_mib": account_mib,
    }


def run(scale: Scale) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "wrk", "taskset")
    cores = core, load_core = two_cores()
    result: dict[str, Any] = {
        "bench": "throughput",
        "machine": machine.facts(),
        "settings": {**msgspec.structs.asdict(scale), "connections": CONNECTIONS, "replicas": 4},
        "loads": {},
    }
    everything = loads()
    with ExitStack() as stack:
        enter = stack.enter_context
        runs = Wrk(Path(enter(tempfile.TemporaryDirectory(prefix="bench-wrk-"))), cores)
        canned = enter(Canned(free_ports(4), load_core))
        urls = canned.urls
        ours = enter(gateway(urls, core))
        uncompiled = enter(gateway(urls, core, name=UNCOMPILED, plain=True))
        plain, floor = enter(aiohttp_proxy(urls, core)), enter(pipe(urls, core))
        packages = routers() if scale.routers else []
        others = [enter(router(package, urls, core)) for package in packages]
        nginx = Proxy("nginx direct", canned.process, canned.ports[0])
        assert ours.admin_port is not None
        for load in everything:
            say(f"throughput, {load.name}")
            first = [uncompiled] if load is everything[0] else []
            proxies = [ours, *first, plain, floor, *others]
            before = samples(ours.admin_port)
            done = runs.rounds(load, proxies, scale.rounds, scale.seconds_s)
            rungs = difference(before, samples(ours.admin_port), RUNG_COUNT, "rung")
            done.append(runs.run(load, nginx, 1))
            found = {one.name: summary(one.name, done) for one in (*proxies, nginx)}
            wanted = scale.half_s and load.name in HALVED
            result["loads"][load.name] = {
                "proxies": found,
                "half": halved(runs, load, proxies, found, scale.half_s) if wanted else {},
                "ratio": ratio(found[plain.name]["cpu_us"], found[ours.name]["cpu_us"]),
                "long": {},
                "rungs": rungs,
                "route": fetch(ours.port, CHAT, workload.sized(300, 1)).headers.get(
                    "x-tokenlane-route"
                ),
            }
        for load in everything if scale.long_s else ():
            with gateway(urls, core) as fresh:
                say(f"throughput, {load.name} for {scale.long_s} s")
                result["loads"][load.name]["long"] = sustained(runs, load, fresh, scale.long_s)
    return result


RUNG_COUNT = "tokenlane_tokenize_seconds_count"


HEADER = ["load and proxy", "req/s", "CPU us", "x aiohttp", "of core", "p50 ms", "p99 ms", "errors"]
LONG_HEADER = [
    "load", "req/s, first third", "last", "CPU us, first third", "last", "x aiohttp, last",
    "MiB idle", "MiB after", "MiB in the account",
]  # fmt: skip


def _rows(load: str, proxies: dict[str, Any]) -> list[list[Cell]]:
    base = proxies["aiohttp"]["cpu_us"]
    return [
        [
            f"{load}  {name}", one["requests_per_s"], one["cpu_us"], ratio(base, one["cpu_us"]),
            one["core_share"], one["p50_ms"], one["p99_ms"], one["errors"],
        ]
        for name, one in proxies.items()
    ]  # fmt: skip


def _long_row(load: str, proxies: dict[str, Any], kept: dict[str, Any]) -> list[Cell]:
    first, last = kept["first"], kept["last"]
    return [
        load, first["requests_per_s"], last["requests_per_s"], first["cpu_us"], last["cpu_us"],
        ratio(proxies["aiohttp"]["cpu_us"], last["cpu_us"]),
        kept["idle_mib"], kept["held_mib"], kept["account_mib"],
    ]  # fmt: skip


def _limits(load: str, proxies: dict[str, Any]) -> list[str]:
    """Who did not have the whole of its core, and why."""
    remarks = []
    for name, one in proxies.items():
        if name == "nginx direct":
            continue
        if remark := others_remark(f"{load}, {name}", one["others_share"]):
            remarks.append(remark)
        elif one["core_share"] < BUSY_SHARE:
            remarks.append(
                f"{load}, {name}: it used only {one['core_share']:.0%} of its core, "
                "so wrk and nginx were the limit"
            )
    return remarks


def finding(result: dict[str, Any]) -> Finding:
    """The tables, a plot for each kind of body, and who was the limit."""
    rows: list[list[Cell]] = []
    half: list[list[Cell]] = []
    long: list[list[Cell]] = []
    remarks = []
    drawn = []
    for load, values in result["loads"].items():
        proxies, kept = values["proxies"], values["long"]
        rows += _rows(load, proxies)
        half += _rows(load, values["half"]) if values["half"] else []
        if kept:
            long.append(_long_row(load, proxies, kept))
        remarks += _limits(load, proxies)
        total = sum(values["rungs"].values()) or 1
        shares = ", ".join(
            f"{rung} {count / total:.1%}" for rung, count in values["rungs"].items() if count
        )
        remarks.append(f"{load}: rungs of the gateway: {shares}; a decision: {values['route']}")
        costs = {name: one["cpu_us"] for name, one in proxies.items() if name != "nginx direct"}
        drawn.append(bars(f"CPU of a request, {load} bodies", "us", costs))
    return Finding(
        name="throughput",
        title="requests of one core, beside a plain aiohttp proxy, a pipe and other routers",
        machine=result["machine"],
        settings=result["settings"],
        tables=[
            Table(title, header, given)
            for title, header, given in (
                ("as fast as each can", HEADER, rows),
                ("at half of that", HEADER, half),
                ("for longer, on a gateway just started", LONG_HEADER, long),
            )
            if given
        ],
        plots=drawn,
        remarks=remarks,
        numbers={f"ratio {load}": values["ratio"] for load, values in result["loads"].items()},
    )


def experiment(options: Options) -> Finding:
    """All loads at the scale asked for."""
    return finding(run(options.pick(*SCALES)))


if __name__ == "__main__":
    main(experiment, __doc__, "throughput")
