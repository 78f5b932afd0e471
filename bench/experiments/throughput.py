"""Requests per second of one core: the gateway beside a plain aiohttp proxy, in one run.

    python -m bench throughput [--smoke | --full] [--json FILE]

The proxy under test has one core; wrk (-t1 -c32) and nginx, which answers with a canned
completion on four ports, have the other. Tokenization and the policy `affinity` are on in the
gateway, which is measured compiled (setup.py) and as plain Python. The proxies take turns, and
the order of a round is the reverse of the one before.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.loads import workload
from bench.loads.workload import CHAT
from bench.tools import machine, wrk
from bench.tools.canned import Canned
from bench.tools.client import fetch
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Table, bars
from bench.tools.processes import core_used_s, free_ports, need_tools, others_remark, say, two_cores
from bench.tools.scrape import difference, samples
from bench.tools.statistics import Cell, median, ratio
from bench.tools.systems import Proxy, aiohttp_proxy, gateway

UNCOMPILED = "tokenlane-plain"
DISTINCT = 1000
PREFIXES = 32
QUESTIONS = 256
BUSY_SHARE = 0.85


class Round(msgspec.Struct, frozen=True):
    """One run of wrk. Shares of the proxy's core (1.0 = all): its own, and other processes'."""

    proxy: str
    report: wrk.Report
    cpu_us: float
    share: float
    others: float


class Load(msgspec.Struct, frozen=True):
    """A kind of body. `script(turn)` is the Lua for one run; turns never repeat a unique tail."""

    name: str
    script: Callable[[int], str]


def loads() -> list[Load]:
    """300 bytes from 1,000 distinct bodies, and all of them new; 16 KiB, of which 12 are one of 32
    system prompts and 4 are new, English and program text; and 390 KB, the turns 97 to 100 of 16
    conversations with a new question each, likewise."""
    small = [workload.sized(300, seed) for seed in range(DISTINCT)]
    made = [Load("300 B", lambda _: wrk.script_of_bodies(CHAT, small))]

    def numbered(name: str, parts: list[workload.Parts]) -> None:
        made.append(Load(name, lambda turn: wrk.script_of_parts(CHAT, parts, turn * 100_000_000)))

    numbered("300 B unique", [workload.sized_parts(300, seed) for seed in range(DISTINCT)])
    kinds = (("", workload.text), (" code", workload.code))
    for kind, write in kinds:
        systems, user = 12 * 1024, 4 * 1024
        shared = [
            workload.shared_prefix(systems, user, seed, PREFIXES, write)
            for seed in range(QUESTIONS)
        ]
        numbered(f"16 KiB{kind}", shared)
    for kind, write in kinds:
        numbered(f"390 KB{kind}", workload.last_turns(workload.LONG_BYTES, write))
    return made


def measure(proxy: Proxy, script: Path, seconds_s: int, cores: tuple[int, int]) -> Round:
    """One run against one proxy. cores: the proxy's, and that of wrk and nginx."""
    before_s, core_before_s = proxy.process.cpu_s(), core_used_s(cores[0])
    started_s = time.monotonic()
    report = wrk.run(proxy.url, script, seconds_s=seconds_s, core=cores[1])
    used_s, core_s = proxy.process.cpu_s() - before_s, core_used_s(cores[0]) - core_before_s
    wall_s = time.monotonic() - started_s
    return Round(
        proxy=proxy.name,
        report=report,
        cpu_us=used_s / max(1, report.requests) * 1e6,
        share=used_s / wall_s,
        others=max(0.0, core_s - used_s) / wall_s,
    )


def rounds_of(
    load: Load, proxies: list[Proxy], *, rounds: int, seconds_s: int, cores: tuple[int, int]
) -> list[Round]:
    """Alternated rounds, after a short one per proxy that warms it and is thrown away."""
    done = []
    with tempfile.TemporaryDirectory(prefix="bench-wrk-") as folder:
        script = Path(folder) / "load.lua"
        turn = 0
        for index in range(rounds + 1):
            order = proxies if index % 2 else proxies[::-1]
            for proxy in order:
                turn += 1
                script.write_text(load.script(turn), encoding="ascii")
                one = measure(proxy, script, seconds_s if index else 1, cores)
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


def run(rounds: int, seconds_s: int) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "wrk", "taskset")
    cores = core, load_core = two_cores()
    result: dict[str, Any] = {
        "bench": "throughput",
        "machine": machine.facts(),
        "settings": {"rounds": rounds, "seconds": seconds_s, "connections": 32, "replicas": 4},
        "loads": {},
    }
    with (
        Canned(free_ports(4), load_core) as canned,
        gateway(canned.urls, core) as ours,
        gateway(canned.urls, core, name=UNCOMPILED, plain=True) as uncompiled,
        aiohttp_proxy(canned.urls, core) as plain,
    ):
        proxies_of_run = [ours, uncompiled, plain]
        nginx = Proxy("nginx direct", canned.process, canned.ports[0])
        assert ours.admin_port is not None
        for load in loads():
            say(f"throughput, {load.name}")
            before = samples(ours.admin_port)
            done = rounds_of(load, proxies_of_run, rounds=rounds, seconds_s=seconds_s, cores=cores)
            rungs = difference(before, samples(ours.admin_port), RUNG_COUNT, "rung")
            done += rounds_of(load, [nginx], rounds=1, seconds_s=2, cores=cores)
            proxies = {one.name: summary(one.name, done) for one in (*proxies_of_run, nginx)}
            result["loads"][load.name] = {
                "proxies": proxies,
                "ratio": ratio(
                    proxies[ours.name]["requests_per_s"], proxies[plain.name]["requests_per_s"]
                ),
                "rungs": rungs,
                "route": fetch(ours.port, CHAT, workload.sized(300, 1)).headers.get(
                    "x-tokenlane-route"
                ),
            }
    return result


RUNG_COUNT = "tokenlane_tokenize_seconds_count"


HEADER = ["load and proxy", "req/s", "x aiohttp", "CPU us", "of core", "p50 ms", "p99 ms", "errors"]


def finding(result: dict[str, Any]) -> Finding:
    """The table, a plot for each kind of body, and who was the limit."""
    rows: list[list[Cell]] = []
    remarks = []
    drawn = []
    for load, values in result["loads"].items():
        base = values["proxies"]["aiohttp"]["requests_per_s"]
        for name, one in values["proxies"].items():
            times = ratio(one["requests_per_s"], base)
            rows.append(
                [
                    f"{load}  {name}", one["requests_per_s"], times, one["cpu_us"],
                    one["core_share"], one["p50_ms"], one["p99_ms"], one["errors"],
                ]
            )  # fmt: skip
            if name == "nginx direct":
                continue
            if remark := others_remark(f"{load}, {name}", one["others_share"]):
                remarks.append(remark)
            elif one["core_share"] < BUSY_SHARE:
                remarks.append(
                    f"{load}, {name}: it used only {one['core_share']:.0%} of its core, "
                    "so wrk and nginx were the limit"
                )
        total = sum(values["rungs"].values()) or 1
        shares = ", ".join(
            f"{rung} {count / total:.1%}" for rung, count in values["rungs"].items() if count
        )
        remarks.append(f"{load}: rungs of the gateway: {shares}; a decision: {values['route']}")
        rates = {name: one["requests_per_s"] for name, one in values["proxies"].items()}
        drawn.append(bars(f"requests/s on one core, {load} bodies", "requests/s", rates))
    return Finding(
        name="throughput",
        title="requests per second of one core, beside a plain aiohttp proxy",
        machine=result["machine"],
        settings=result["settings"],
        tables=[Table("", HEADER, rows)],
        plots=drawn,
        remarks=remarks,
        numbers={f"ratio {load}": values["ratio"] for load, values in result["loads"].items()},
    )


def experiment(options: Options) -> Finding:
    """All loads at the scale asked for."""
    rounds, seconds_s = options.pick((1, 1), (2, 2), (5, 4))
    return finding(run(rounds, seconds_s))


if __name__ == "__main__":
    main(experiment, __doc__, "throughput")
