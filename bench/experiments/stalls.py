"""Does the gateway know why it stalls? Stalls of 20 ms are planted in it, and its verdicts counted.

    python -m bench stalls [--trials 200] [--only STAGE:KIND ...] [--plain] [--json FILE]

Each cell is a gateway of its own under a steady load, whose worker is held again and again in one
stage in one way (see bench.tools.planted). The worker writes down when; a trial is right if the
stall that the gateway shows at that time has the cause that was planted. A stall that was to work,
and was given a CPU for less than a third of its time, was the machine's: it counts as starved where
the gateway says `os`, and in no share. What was seen of those that are not right is in the JSON,
with the numbers that decided it. Then the monitor's own price is measured: idle and under load, by
its own counter, and as the difference that it makes to the CPU of the gateway.
"""

import argparse
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.loads.generator import evenly, failure_remark, generate, lateness_s
from bench.loads.openloop import Flow, Plan
from bench.tools import machine, planted
from bench.tools.canned import Canned
from bench.tools.client import fetch
from bench.tools.processes import BenchError, free_ports, need_tools, pause, say, two_cores
from bench.tools.report import finish
from bench.tools.scrape import samples
from bench.tools.statistics import Cell, median, table
from bench.tools.systems import Proxy, gateway
from tokenlane.telemetry.stalls.stall import Stall

CHAT = "/v1/chat/completions"
SECONDS = 0.02
# From one to the next: a loop that is held for most of the time has no time for its requests, and
# what it shows is its queue.
GAP_S = 0.1
RATE_PER_S = 150
# Requests a second at which the price is taken, by the name of the state.
RATES_PER_S = {"idle": 0, "working": 150, "busy": 800}
PRICE_S = 10
POLL_S = 0.3
PRICE = "tokenlane_stall_monitor_cpu_seconds_total"
# How often a request enters a stage.
ENTRIES = dict.fromkeys(planted.STAGES, 1) | {"route": 2, "relay": 2}
# What is no stage's doing is planted while one that every request passes is entered.
ELSEWHERE = "route"
CELLS = [
    *((stage, kind) for stage in planted.STAGES for kind in ("sleep", "spin", "hold")),
    *((ELSEWHERE, kind) for kind in planted.CAUSE_OF),
]
UNSEEN, STARVED = "unseen", "starved"
# What sleeps needs no CPU.
ASLEEP = ("sleep", "stop")


class Planted(NamedTuple):
    """One stall: its times of time.monotonic(), and what it used of a CPU."""

    began_s: float
    ended_s: float
    cpu_s: float

    def starved(self, stall_s: float) -> bool:
        """The machine gave it no CPU for most of its time, or of a stall of that length."""
        return self.cpu_s < max(self.ended_s - self.began_s, stall_s) / 3


class _Page(msgspec.Struct):
    stalls: list[Stall]


def seen(one: Planted, stalls: Sequence[Stall]) -> Stall | None:
    """The stall that overlaps it most."""

    def overlap_s(stall: Stall) -> float:
        ended_s = min(one.ended_s, stall.began_s + stall.length_s)
        return ended_s - max(one.began_s, stall.began_s)

    best = max(stalls, key=overlap_s, default=None)
    return best if best is not None and overlap_s(best) > 0 else None


def judge(one: Planted, stall: Stall | None, *, works: bool) -> str:
    """The cause that was found for a planted stall. works: it needs a CPU."""
    if stall is None:
        return UNSEEN
    if works and stall.cause == "os" and one.starved(stall.length_s):
        return STARVED
    return stall.cause


@contextmanager
def planting(spec: str) -> Iterator[None]:
    """Gateways started inside have this planted."""
    os.environ[planted.VARIABLE] = spec
    try:
        yield
    finally:
        del os.environ[planted.VARIABLE]


@contextmanager
def load(proxy: Proxy, rate_per_s: int, seconds_s: int, core: int) -> Iterator[list[str]]:
    """Small requests for so long, meanwhile the body runs; then what is to be remarked on them."""
    flow = Flow("small", proxy.port, CHAT, evenly(rate_per_s, seconds_s, 1), "small", 32, 300)
    remarks: list[str] = []

    def generating() -> None:
        calls = generate(Plan([flow]), core).calls["small"]
        if failed := failure_remark(calls):
            remarks.append(failed)
        late_s = lateness_s(calls)
        if late_s > 0.02:
            remarks.append(f"the load generator itself was {late_s * 1e3:.0f} ms late")

    thread = threading.Thread(target=generating)
    thread.start()
    try:
        yield remarks
    finally:
        thread.join()


def shown(proxy: Proxy) -> list[Stall]:
    """The last stalls."""
    assert proxy.admin_port is not None
    return msgspec.json.decode(fetch(proxy.admin_port, "/stalls").body, type=_Page).stalls


def trial(
    stage: str, kind: str, trials: int, urls: Sequence[str], core: int, *, plain: bool
) -> dict[str, Any]:
    """One cell of the table."""
    every = max(1, round(RATE_PER_S * GAP_S * ENTRIES[stage]))
    seconds_s = round(trials * GAP_S * 1.1) + 3
    plan = planted.Plan(stage, kind, SECONDS, every)
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-stalls-") as folder:
        log = Path(folder) / "planted"
        stalls: set[Stall] = set()
        with (
            planting(f"{stage}:{kind}:{SECONDS}:{every}:{log}"),
            gateway(urls, None, program=planted.PLANTED_GATEWAY, plain=plain) as proxy,
        ):
            with load(proxy, RATE_PER_S, seconds_s, core) as remarks:
                until_s = time.monotonic() + seconds_s + 1.0
                while time.monotonic() < until_s:
                    pause(POLL_S)
                    stalls.update(shown(proxy))
            stalls.update(shown(proxy))
        lines = log.read_text(encoding="ascii").splitlines() if log.exists() else []
    plants = [Planted(*map(float, line.split())) for line in lines][:trials]
    if not plants:
        raise BenchError(f"{stage}:{kind}: nothing was planted")
    verdicts = []
    for one in plants:
        stall = seen(one, list(stalls))
        verdicts.append((judge(one, stall, works=kind not in ASLEEP), one, stall))
    found = Counter(verdict for verdict, _, _ in verdicts)
    fed = len(plants) - found[STARVED]
    return {
        "stage": stage,
        "kind": kind,
        "cause": plan.cause,
        "trials": len(plants),
        "right": found[plan.cause],
        "starved": found[STARVED],
        "share": found[plan.cause] / fed if fed else None,
        "found": dict(found.most_common()),
        "planted_ms": median([(one.ended_s - one.began_s) * 1e3 for one in plants]),
        "misses": [
            {"planted": one._asdict(), "seen": msgspec.to_builtins(stall)}
            for verdict, one, stall in verdicts
            if verdict != plan.cause
        ],
        "load_1_min": busy,
        "remarks": remarks,
    }


def price(urls: Sequence[str], cores: tuple[int, int], *, plain: bool) -> dict[str, float]:
    """Shares of a core: of the monitor by its own count, of the gateway with it and without. The
    gateway has a core of its own, so that it waits for nobody else's work."""
    result = {}
    with tempfile.NamedTemporaryFile("w", prefix="bench-stalls-", suffix=".yaml") as config:
        # One beat an hour: as if there were none.
        config.write("stalls:\n  beat_s: 3600.0\n  idle_beat_s: 3600.0\n")
        config.flush()
        for name, flags in (("with", ()), ("without", ("--config", config.name))):
            with gateway(urls, cores[0], *flags, plain=plain) as proxy:
                pause(2.0)  # until it idles
                for state, rate_per_s in RATES_PER_S.items():
                    own, whole = _price(proxy, rate_per_s, cores[1])
                    result[f"{name}_{state}"] = whole
                    if name == "with":
                        result[f"monitor_{state}"] = own
                    say(f"  price, {name} beats, {state}: {own:.2%} of {whole:.2%}")
    return result


def _price(proxy: Proxy, rate_per_s: int, core: int) -> tuple[float, float]:
    assert proxy.admin_port is not None

    def used() -> tuple[float, float, float]:
        assert proxy.admin_port is not None
        pause(1.1)  # the counter is brought up to date once a second
        own_s = samples(proxy.admin_port).get((PRICE, ()), 0.0)
        return time.monotonic(), own_s, proxy.process.cpu_s()

    def measure() -> tuple[float, float]:
        before = used()
        pause(PRICE_S)
        wall_s, own_s, cpu_s = (now - then for now, then in zip(used(), before, strict=True))
        return own_s / wall_s, cpu_s / wall_s

    if not rate_per_s:
        return measure()
    with load(proxy, rate_per_s, PRICE_S + 4, core):
        return measure()


def run(trials: int, only: Sequence[str], *, plain: bool) -> dict[str, Any]:
    """The whole measurement, ready for JSON."""
    need_tools("nginx", "taskset")
    cells = [cell for cell in CELLS if not only or ":".join(cell) in only]
    names = [":".join(cell) for cell in CELLS]
    if unknown := set(only) - {*names, "price"}:
        raise BenchError(f"--only {unknown.pop()} is not one of: {', '.join(names)}, price")
    cores = _, core = two_cores()
    result: dict[str, Any] = {"bench": "stalls", "machine": machine.facts(), "cells": []}
    with Canned(free_ports(4), core) as canned:
        for stage, kind in cells:
            one = trial(stage, kind, trials, canned.urls, core, plain=plain)
            say(f"  {stage}:{kind}  {one['right']}/{one['trials']}  {one['found']}")
            result["cells"].append(one)
        if not only or "price" in only:
            result["price"] = price(canned.urls, cores, plain=plain)
    return result


def show(result: dict[str, Any]) -> str:
    """The tables, with the machine above them and remarks below."""
    rows: list[list[Cell]] = []
    remarks = []
    for one in result["cells"]:
        others = {
            name: count
            for name, count in one["found"].items()
            if name not in (one["cause"], STARVED)
        }
        said = ", ".join(f"{name} {count}" for name, count in others.items())
        rows.append(
            [
                f"{one['stage']} {one['kind']}", one["planted_ms"], one["cause"],
                f"{one['right']}/{one['trials']}", one["starved"],
                None if one["share"] is None else f"{one['share']:.1%}", said or None,
                one["load_1_min"],
            ]
        )  # fmt: skip
        remarks += [f"{one['stage']} {one['kind']}: {remark}" for remark in one["remarks"]]
    header = ["planted", "ms", "cause", "right", "starved", "share of the fed", "others", "load"]
    lines = [machine.describe(result["machine"]), ""]
    if rows:
        lines.append(table(header, rows))
    if "price" in result:
        price_rows: list[list[Cell]] = [
            [
                f"{rate_per_s} requests/s",
                f"{result['price'][f'monitor_{key}']:.2%}",
                f"{result['price'][f'with_{key}']:.2%}",
                f"{result['price'][f'without_{key}']:.2%}",
            ]
            for key, rate_per_s in RATES_PER_S.items()
        ]
        header = ["of a core", "the monitor", "the gateway with it", "without beats"]
        lines += ["", table(header, price_rows)]
    return "\n".join([*lines, "", *remarks])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench stalls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trials", type=int, default=200, help="of each cell")
    parser.add_argument(
        "--only", metavar="STAGE:KIND", action="append", default=[], help="this cell, or `price`"
    )
    parser.add_argument("--plain", action="store_true", help="not the compiled build")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args()
    finish(lambda: run(options.trials, options.only, plain=options.plain), show, options.json)


if __name__ == "__main__":
    main()
