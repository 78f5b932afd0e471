"""Ids beside text: the same chats by 32 clients, straight and through a gateway, in turns.

    python -m bench beside_text [--quick | --full]

Closed loop, chats of 4,400 tokens that the engine's cache knows, one token out. All four ways of
`barrier` follow each other in each round, in reversed order every other round. Two ways are
compared round by round, and the median of those ratios is what counts: a machine that slows down
for a minute slows both.
"""

from typing import Any

from bench.engine.barrier import GATEWAY_IDS, GATEWAY_TEXT, IDS, TEXT, TOKENS, ways
from bench.loads.clients import Served, drive, others_remark, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Finding, Plot, Series, Table
from bench.tools.processes import say
from bench.tools.statistics import Cell, cell, median, quantile, ratio
from bench.tools.vllm_server import vllm_server

CLIENTS = 32


def run(options: Options) -> Finding:
    """Measure all ways in turns."""
    facts = machine.facts()
    rounds, seconds_s = options.pick(1, 9, 30), options.pick(0.5, 5.0, 5.0)
    got: dict[str, list[Served]] = {}
    with vllm_server() as server, ways(server, options) as all_ways:
        prompts = EnginePrompts()
        texts = prompts.known(TOKENS)
        bodies = {False: texts, True: prompts.as_ids(texts)}
        for way in all_ways.values():
            warm(way.port, CHAT, bodies[way.ids])
        for number in range(rounds):
            order = list(all_ways.items())
            for name, way in order[:: -1 if number % 2 else 1]:
                say(f"  beside_text, {name}, round {number + 1} of {rounds}")
                plan = Plan(way.port, CHAT, bodies[way.ids], CLIENTS, seconds_s)
                got.setdefault(name, []).append(drive(plan, way.spenders))
        about = server.about()
    return finding(facts, {name: got[name] for name in all_ways}, about)


def finding(facts: dict[str, Any], got: dict[str, list[Served]], about: str) -> Finding:
    """Return the medians, how far they scatter, and the ratios that matter."""
    rates = {name: [one.per_s for one in runs if one.per_s] for name, runs in got.items()}
    rows: list[list[Cell]] = [
        [name, median(rates[name]), min(rates[name], default=None), max(rates[name], default=None),
         median([one.p99_ms for one in runs if one.p99_ms]), sum(one.failed for one in runs),
         *(median([one.cores[part] for one in runs if part in one.cores])
           for part in ("front end", "engine", "gateway", "load"))]
        for name, runs in got.items()
    ]  # fmt: skip
    return Finding(
        name="beside_text",
        title="ids beside text: the same chats, straight and through a gateway, in turns",
        machine=facts,
        settings={"prompt_tokens": TOKENS, "known": True, "clients": CLIENTS},
        tables=[
            Table(
                f"known chats of {TOKENS:,} tokens, one token out, {CLIENTS} clients",
                ["way", "req/s, median", "least", "most", "p99 ms", "failed", "front end cores",
                 "engine cores", "gateway cores", "load cores"],
                rows,
            )
        ],
        plots=[
            Plot(
                title="requests a second, round by round", x="round", y="req/s",
                series=[
                    Series(name, [(float(at), value) for at, value in enumerate(values, 1)])
                    for name, values in rates.items()
                ],
            )
        ],
        remarks=[
            f"ids over text, straight to the server: {compared(got[IDS], got[TEXT])}",
            f"ids over text, through the gateway: {compared(got[GATEWAY_IDS], got[GATEWAY_TEXT])}",
            f"ids, through the gateway over straight: {compared(got[GATEWAY_IDS], got[IDS])}",
            others_remark(one for runs in got.values() for one in runs),
            about,
        ],
    )  # fmt: skip


def compared(ours: list[Served], others: list[Served]) -> str:
    """Return the median of the rounds' ratios, and the middle half of them."""
    ratios = [ratio(our.per_s, other.per_s) for our, other in zip(ours, others, strict=True)]
    known = [one for one in ratios if one is not None]
    low, high = quantile(known, 0.25), quantile(known, 0.75)
    return f"{cell(median(known))} x (half of the rounds within {cell(low)} to {cell(high)})"


if __name__ == "__main__":
    main(run, __doc__, "beside_text")
