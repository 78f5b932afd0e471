"""The CPU-bound regime: 50 tokens in, 50 out, at rising rates; one API server or two.

    python -m bench cpu_bound [--quick | --full]

Open loop of streamed chats through a `tokenlane` to one vLLM server, for `--api-server-count` 1 and
2 and 1 and 2 gateway workers, each rate twice and the better run kept. The rate rises until less
than 85 % of it is served; what was served most is the capacity. Published: 20 % more by a second
API server. That needs a core that idles: where all are full already, a second front end has nothing
to run on, and the shape is not judged.
"""

import time
from typing import Any, NamedTuple

from bench.loads.clients import Spender
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.generator import evenly, failure_remark, generate, latency, limit_remark
from bench.loads.openloop import Flow, Plan
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, few, times
from bench.tools.processes import machine_used_s, need_tools, say, two_cores
from bench.tools.statistics import Cell, ratio
from bench.tools.systems import gateway
from bench.tools.vllm_server import vllm_server

TOKENS_IN, TOKENS_OUT = 50, 50
RATES_PER_S = (20, 40, 60, 80, 100, 130, 160, 200, 250, 300)
KEEPS_UP = 0.85
COUNTS = (1, 2)
PUBLISHED_GAIN = 1.2
# Cores that idle together have at least this much left.
FULL = 0.9


class Setup(NamedTuple):
    """API servers of vLLM, workers of the gateway."""

    api_servers: int
    workers: int


class Step(NamedTuple):
    """What was served at one rate."""

    offered_per_s: float
    requests: int
    served_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    failed: int
    cores: dict[str, float]
    remark: str | None
    failures: str | None


def step(
    port: int, rate: float, seconds_s: float, bodies: list[bytes], spenders: dict[str, Spender]
) -> Step:
    """Offer one rate."""
    flow = Flow(
        "chats", port, CHAT, evenly(rate, seconds_s, round(rate)), "given", 32, bodies=bodies
    )
    before_s = {name: one.cpu_s() for name, one in spenders.items()}
    machine_s, began_s = machine_used_s(), time.monotonic()
    result = generate(Plan([flow], linger_s=20.0), two_cores()[1])
    calls = result.calls["chats"]
    whole = [call for call in calls if call.served]
    wall_s = max(call.done_s for call in calls)
    said = latency(calls, result.wall_s)
    spent_s = {name: one.cpu_s() - before_s[name] for name, one in spenders.items()}
    others_s = machine_used_s() - machine_s - sum(spent_s.values()) - result.cpu_s
    cores = {name: one_s / result.wall_s for name, one_s in spent_s.items()}
    cores["others"] = max(0.0, others_s) / (time.monotonic() - began_s)
    return Step(
        rate, len(calls), len(whole) / max(wall_s, seconds_s), said.p50_ms, said.p99_ms,
        said.unserved, cores | {"load": result.cpu_s / result.wall_s},
        limit_remark(f"{rate:.3g}/s", result, ["chats"]), failure_remark(calls),
    )  # fmt: skip


def run(options: Options) -> Finding:
    """Raise the rate for every setup."""
    need_tools("taskset")
    facts = machine.facts()
    rates = options.pick(RATES_PER_S[:1], (20, 40, 60, 100, 160), RATES_PER_S)
    seconds_s = options.pick(1.0, 4.0, 7.0)
    bodies = EnginePrompts(TOKENS_OUT, stream=True).new(2_000, TOKENS_IN)
    got: dict[Setup, list[Step]] = {}
    about = ""
    for api_servers in COUNTS:
        more = ("--api-server-count", str(api_servers)) if api_servers > 1 else ()
        with vllm_server(*more) as server:
            about = server.about()
            for workers in COUNTS:
                setup = Setup(api_servers, workers)
                got[setup] = []
                flags = ("--workers", str(workers))
                with gateway([server.url], None, *flags, plain=options.plain) as through:
                    spenders: dict[str, Spender] = {
                        "gateway": through.process, "front end": server.front,
                        "engine": server.engine,
                    }  # fmt: skip
                    step(through.port, 10, 1.0, bodies, {})
                    for rate in rates:
                        say(f"  cpu_bound, {api_servers} API servers, {workers} workers, {rate}/s")
                        one, two = (
                            step(through.port, rate, seconds_s, bodies, spenders) for _ in COUNTS
                        )
                        got[setup].append(max(one, two, key=lambda run: run.served_per_s))
                        if got[setup][-1].served_per_s < KEEPS_UP * rate:
                            break
    return finding(facts, got, about)


def capacity(steps: list[Step]) -> float:
    """Return the most that was served in a second."""
    return max(one.served_per_s for one in steps)


def finding(facts: dict[str, Any], got: dict[Setup, list[Step]], about: str) -> Finding:
    """Return the steps, the curves, and what a second API server gave."""
    parts = ("gateway", "front end", "engine", "load", "others")
    named = [(f"{setup.api_servers}, {setup.workers}, {one.offered_per_s:g}/s", one)
             for setup, steps in got.items() for one in steps]  # fmt: skip
    rows: list[list[Cell]] = [
        [name, one.served_per_s, one.p50_ms, one.p99_ms, one.failed,
         *(one.cores[part] for part in parts)]
        for name, one in named
    ]  # fmt: skip
    most = {setup: capacity(steps) for setup, steps in got.items()}
    one, two = most[Setup(1, 1)], most[Setup(2, 1)]
    workers = ratio(most[Setup(1, 2)], one)
    used = max(sum(last.cores.values()) for last in (steps[-1] for steps in got.values()))
    cores = facts["cores"]
    full = used > FULL * cores
    gain = two / one
    return Finding(
        name="cpu_bound",
        title=f"the CPU-bound regime: {TOKENS_IN} tokens in, {TOKENS_OUT} out, at rising rates",
        machine=facts,
        settings={"tokens_in": TOKENS_IN, "tokens_out": TOKENS_OUT},
        tables=[
            Table("streamed chats",
                  ["API servers, workers, offered", "served/s", "p50 ms", "p99 ms", "failed",
                   *(f"{part} cores" for part in parts)], rows)
        ],
        plots=[
            Plot(
                title="served by offered", x="offered/s", y="served/s",
                series=[
                    Series(f"{setup.api_servers} API servers, {setup.workers} workers",
                           [(at.offered_per_s, at.served_per_s) for at in steps])
                    for setup, steps in got.items()
                ],
            )
        ],
        published=[
            Beside("two API servers over one", "+20 %", f"{gain - 1:+.0%}"),
            Beside("two gateway workers over one", "-", f"{(workers or 1.0) - 1:+.0%}"),
        ],
        shapes=[
            Shape("a second API server serves more (1.2 x published)",
                  None if full else gain > (1 + PUBLISHED_GAIN) / 2,
                  f"{times(two, one)}; {used:.1f} of {cores} cores used at the highest rate"
                  + (": none is left for a second one" if full else "")),
        ],
        answers=[
            f"CPU-bound: {one:.0f} streamed chats/s by one API server, {two:.0f} by two, with "
            f"{used:.1f} of {cores} cores used"
            + (": where none is left, more cores come first, then API servers" if full else "")
        ],
        remarks=[*few(f"{name}: {one.failures}" for name, one in named if one.failures),
                 *few(one.remark for _, one in named if one.remark), about],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "cpu_bound")
