"""Breaking the barrier: text to the engine, ids from elsewhere, ids from a gateway beside it.

    python -m bench barrier [--quick | --full]

Closed loop, chats of 4,400 tokens that the engine's cache knows, one token out, 1 to 64 clients,
the best of up to three runs, four ways: as text; as ids that were made beforehand, as a gateway on
another machine sends them; and through a `tokenlane` on the engine's own cores, its CPU counted,
that sends text or ids.
Published: 118 -> 179 and 179 -> 303 requests/s.

Two sources contradict each other: tokenizing is under 1 % of a request, and taking it away gives
70 %. So rates by text and by ids stand beside each other for prompt lengths, cache hit rates and
numbers of clients (`barrier_grid`), and the time of one request alone for lengths of its answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

from bench.loads.clients import Served, Spender, better, drive, in_time, others_remark, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, times
from bench.tools.processes import say
from bench.tools.statistics import Cell, cell, minus, ratio
from bench.tools.systems import gateway, wait_proven
from bench.tools.vllm_server import Server, vllm_server

TOKENS = 4_400
CLIENTS = (1, 8, 16, 32, 64)
TEXT, IDS = "text", "ids made elsewhere"
GATEWAY_TEXT, GATEWAY_IDS = "tokenlane, text", "tokenlane, ids"
PUBLISHED = ("118 -> 179 req/s", "179 -> 303 req/s")
# Of the rounds after the first nothing is begun later: the part has 15 minutes in all.
RATES_LIMIT_S, ALONE_LIMIT_S = 560.0, 210.0
# A difference below a third is the machine's.
MATTERS = 1.3


class Way(NamedTuple):
    """Where chats go, and as what."""

    port: int
    ids: bool
    spenders: dict[str, Spender]


@contextmanager
def ways(server: Server, options: Options) -> Iterator[dict[str, Way]]:
    """Give all four ways, the gateways warm."""
    parts: dict[str, Spender] = {"front end": server.front, "engine": server.engine}
    flag = "--tokens-forward-tokens"
    with (
        gateway([server.url], None, flag, "off", name="text", plain=options.plain) as by_text,
        gateway([server.url], None, flag, "all", name="ids", plain=options.plain) as by_ids,
    ):
        assert by_ids.admin_port is not None
        wait_proven(by_ids.admin_port)
        yield {
            TEXT: Way(server.port, False, parts),
            IDS: Way(server.port, True, parts),
            GATEWAY_TEXT: Way(by_text.port, False, parts | {"gateway": by_text.process}),
            GATEWAY_IDS: Way(by_ids.port, False, parts | {"gateway": by_ids.process}),
        }


def run(options: Options) -> Finding:
    """Measure all ways at all numbers of clients, and one request alone by its answer's length."""
    facts = machine.facts()
    counts = options.pick((1, 8), CLIENTS, CLIENTS)
    seconds_s = options.pick(0.5, 1.5, 6.0)
    lengths = options.pick((1, 16), (1, 64, 256), (1, 16, 64, 256, 1_024))
    got: dict[str, dict[int, Served]] = {}
    alone: dict[int, tuple[Served, Served]] = {}
    with vllm_server() as server, ways(server, options) as all_ways:
        prompts = EnginePrompts()
        texts = prompts.known(TOKENS)
        bodies = {False: texts, True: prompts.as_ids(texts)}
        for name, way in all_ways.items():
            warm(way.port, CHAT, bodies[way.ids])
            got[name] = {}
        repeats = options.pick(1, 2, 3)
        runs = list(product(counts, all_ways.items()))
        for clients, (name, way) in in_time(runs, repeats, RATES_LIMIT_S, least=len(runs)):
            say(f"  barrier, {name}, {clients} clients")
            plan = Plan(way.port, CHAT, bodies[way.ids], clients, seconds_s)
            one = drive(plan, way.spenders)
            got[name][clients] = better(got[name].get(clients), one)
        for out in in_time(lengths, repeats, ALONE_LIMIT_S, least=len(lengths)):
            say(f"  barrier, one client, {out} tokens out")
            longer = EnginePrompts(out)
            rounds = 16 if out <= 64 else 4  # a long answer takes seconds, and varies less
            texts = longer.known(TOKENS)
            text, ids = (
                drive(Plan(server.port, CHAT, given, 1, seconds_s, rounds=rounds), {})
                for given in (texts, longer.as_ids(texts))
            )
            before = alone.get(out, (None, None))
            alone[out] = better(before[0], text), better(before[1], ids)
        about = server.about()
    return finding(facts, got, alone, about)


def share(text_ms: float | None, ids_ms: float | None) -> float | None:
    """Return the part of a request's time that making its ids takes."""
    return ratio(minus(text_ms, ids_ms), text_ms)


def finding(
    facts: dict[str, Any],
    got: dict[str, dict[int, Served]],
    alone: dict[int, tuple[Served, Served]],
    about: str,
) -> Finding:
    """Return both tables, the curves, and which source is right about what."""
    rows: list[list[Cell]] = [
        [f"{name}, {clients}", one.per_s, one.p50_ms, one.p99_ms, one.failed,
         *(one.cores.get(part) for part in ("front end", "engine", "gateway", "load"))]
        for name, by in got.items() for clients, one in by.items()
    ]  # fmt: skip
    shares = {out: share(text.p50_ms, ids.p50_ms) for out, (text, ids) in alone.items()}
    alone_rows: list[list[Cell]] = [
        [out, text.p50_ms, ids.p50_ms, shares[out]] for out, (text, ids) in alone.items()
    ]
    counts = list(got[TEXT])
    most = max(counts)
    rate = {name: by[most].per_s for name, by in got.items()}
    elsewhere, beside = ratio(rate[IDS], rate[TEXT]), ratio(rate[GATEWAY_IDS], rate[GATEWAY_TEXT])
    shortest, longest = min(shares), max(shares)
    first, last = shares[shortest], shares[longest]
    return Finding(
        name="barrier",
        title="breaking the barrier: text or ids to the engine, and who makes them",
        machine=facts,
        settings={"prompt_tokens": TOKENS, "known": True},
        tables=[
            Table(
                f"known chats of {TOKENS:,} tokens, one token out",
                ["way, clients", "req/s", "p50 ms", "p99 ms", "failed", "front end cores",
                 "engine cores", "gateway cores", "load cores"],
                rows,
            ),
            Table("one client: the same by the length of the answer",
                  ["tokens out", "text p50 ms", "ids p50 ms", "of the time by text"], alone_rows),
        ],
        plots=[
            Plot(
                title="requests a second by clients", x="clients", y="req/s", log="x",
                series=[
                    Series(name, [(float(at), one.per_s) for at, one in by.items() if one.per_s])
                    for name, by in got.items()
                ],
            )
        ],
        published=[
            Beside("separate preprocessing, text -> ids", PUBLISHED[0],
                   f"{cell(rate[TEXT])} -> {cell(rate[IDS])} req/s ({most} clients)"),
            Beside("the same, again", PUBLISHED[1],
                   f"{cell(rate[GATEWAY_TEXT])} -> {cell(rate[GATEWAY_IDS])} req/s through "
                   "tokenlane on the same cores"),
        ],
        shapes=[
            Shape(f"ids made elsewhere give more requests at {most} clients (1.52 x and 1.69 x "
                  "published)", None if elsewhere is None else elsewhere > MATTERS,
                  times(rate[IDS], rate[TEXT])),
            Shape("so do ids from a gateway on the engine's own cores, its CPU counted",
                  None if beside is None else beside > MATTERS,
                  times(rate[GATEWAY_IDS], rate[GATEWAY_TEXT])),
            Shape("the longer the answer, the less of one request's time goes to making ids",
                  None if None in (first, last) else (last or 0.0) < (first or 0.0),
                  f"{first or 0.0:.0%} of it with {shortest} token out, {last or 0.0:.1%} with "
                  f"{longest:,}"),
        ],
        answers=[contradiction(alone, elsewhere, most)],
        remarks=[
            "ids made elsewhere: by another machine, whose CPU is not counted here",
            others_remark(one for by in got.values() for one in by.values()),
            about,
        ],
    )  # fmt: skip


def contradiction(alone: dict[int, tuple[Served, Served]], gain: float | None, clients: int) -> str:
    """Return how both sources can be right, in this run's figures."""
    shortest, longest = min(alone), max(alone)
    text, ids = alone[shortest]
    spared_ms = minus(text.p50_ms, ids.p50_ms)
    step_ms = ratio(minus(alone[longest][1].p50_ms, ids.p50_ms), longest - shortest)
    if spared_ms is None or step_ms is None or step_ms <= 0 or spared_ms <= 0:
        return "under 1 % or 70 %: not told, ids were not faster than text for one client"
    return (
        f"under 1 % or 70 %: both. Ids spare {spared_ms:.1f} ms of one request of {TOKENS:,} "
        f"tokens; at {step_ms:.2f} ms a token that is under 1 % of any request with more than "
        f"{99 * spared_ms / step_ms:,.0f} tokens of answer. But the front end is one thread, "
        f"and with {clients} clients and short answers those milliseconds are what it is full of: "
        f"sparing them gave {cell(gain)} times the requests"
    )


if __name__ == "__main__":
    main(run, __doc__, "barrier")
