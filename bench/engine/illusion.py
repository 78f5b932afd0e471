"""The utilization illusion: twenty times the clients, the same throughput, and a tail that grows.

    python -m bench illusion [--quick | --full]

Closed loop, straight to one vLLM server: chats of 1,000 tokens that its cache knows, one token out,
the best of three runs. Published: 133.75 -> 133.99 requests/s from 20 to 400 clients, p99 150 ->
2,745 ms. The CPU of the front end (HTTP, template, tokenizing) and of the engine beside each other
tell who is the limit.
"""

from typing import Any

from bench.loads.clients import Served, better, drive, others_remark, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, milliseconds, times
from bench.tools.processes import say
from bench.tools.statistics import Cell, cell, ratio
from bench.tools.vllm_server import vllm_server

TOKENS = 1_000
FEW, MANY = 20, 400
PUBLISHED_PER_S, PUBLISHED_P99_MS = (133.75, 133.99), (150.0, 2_745.0)
# A rate that moves by less is flat; on a machine that others share it moves by a third by itself.
FLAT = 1.35


def run(options: Options) -> Finding:
    """Measure all numbers of clients on one server."""
    facts = machine.facts()
    counts = options.pick((FEW, MANY), (1, 5, FEW, 100, MANY), (1, 5, 10, FEW, 50, 100, 200, MANY))
    bodies = EnginePrompts().known(TOKENS)
    got: dict[int, Served] = {}
    with vllm_server() as server:
        warm(server.port, CHAT, bodies)
        for clients in counts * options.pick(1, 3, 3):
            say(f"  illusion, {clients} clients")
            plan = Plan(server.port, CHAT, bodies, clients, options.pick(0.5, 2.5, 12.0))
            one = drive(plan, {"front end": server.front, "engine": server.engine})
            got[clients] = better(got.get(clients), one)
        about = server.about()
    return finding(facts, got, about)


def finding(facts: dict[str, Any], got: dict[int, Served], about: str) -> Finding:
    """Return the table, the curves, and whether the rate stays where the tail grows."""
    rows: list[list[Cell]] = [
        [clients, one.per_s, one.p50_ms, one.p99_ms, one.failed,
         *(one.cores[name] for name in ("front end", "engine", "load"))]
        for clients, one in got.items()
    ]  # fmt: skip
    few, many = got[FEW], got[MANY]
    flat, grown = ratio(many.per_s, few.per_s), ratio(many.p99_ms, few.p99_ms)
    rates = [(float(clients), one.per_s) for clients, one in got.items() if one.per_s]
    tails = [(float(clients), one.p99_ms) for clients, one in got.items() if one.p99_ms]
    front, engine = many.cores["front end"], many.cores["engine"]
    return Finding(
        name="illusion",
        title=f"the utilization illusion: {FEW} and {MANY} clients, the front end saturated",
        machine=facts,
        settings={"prompt_tokens": TOKENS, "known": True, "tokens_out": 1},
        tables=[
            Table(
                f"known chats of {TOKENS:,} tokens, one token out",
                ["clients", "req/s", "p50 ms", "p99 ms", "failed", "front end cores",
                 "engine cores", "load cores"],
                rows,
            )
        ],
        plots=[
            Plot(title="requests a second by clients", x="clients", y="req/s", log="x",
                 series=[Series("requests/s", rates)]),
            Plot(title="p99 by clients", x="clients", y="ms", log="xy",
                 series=[Series("p99", tails)]),
        ],
        published=[
            Beside(f"{FEW} -> {MANY} clients, requests/s",
                   " -> ".join(map(str, PUBLISHED_PER_S)),
                   f"{cell(few.per_s)} -> {cell(many.per_s)}"),
            Beside("p99", milliseconds(*PUBLISHED_P99_MS), milliseconds(few.p99_ms, many.p99_ms)),
        ],
        shapes=[
            Shape(f"{MANY} clients get no more out of it than {FEW}",
                  None if flat is None else flat < FLAT, times(many.per_s, few.per_s)),
            Shape("and their p99 is several times as long "
                  f"({times(PUBLISHED_P99_MS[1], PUBLISHED_P99_MS[0])} published)",
                  None if grown is None else grown > 5, times(many.p99_ms, few.p99_ms)),
            Shape("the front end is the busiest part, the engine is not", front > engine,
                  f"{front:.2f} and {engine:.2f} cores"),
        ],
        remarks=[
            f"a full closed loop's latency is clients over rate: {MANY} / {cell(many.per_s)} = "
            + cell(ratio(MANY, many.per_s)) + " s",
            others_remark(got.values()),
            about,
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "illusion")
