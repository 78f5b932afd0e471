"""The radix paradox: a prefix cache that is always hit helps few clients, and not many.

    python -m bench radix [--quick | --full]

Closed loop, straight to one vLLM server, 20 and 400 clients, chats of 1,500 tokens, one token out,
the best of the runs: new ones, and ones that the cache knows as a whole. Published: 164 -> 67 ms
for few clients, and 1,780 ms for many with a full cache hit. What is left of a request that hits is
the front end's.
"""

from itertools import product
from typing import Any

from bench.loads.clients import Served, better, drive, others_remark, warm
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Shape, Table, bars, milliseconds, times
from bench.tools.processes import say
from bench.tools.scrape import difference
from bench.tools.statistics import Cell, ratio
from bench.tools.vllm_server import vllm_server

TOKENS = 1_500
FEW, MANY = 20, 400
PUBLISHED_MS = (164.0, 67.0, 1_780.0)
NEW, KNOWN = "new", "known"
HITS, ASKED = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


def run(options: Options) -> Finding:
    """Measure both kinds of prompt under both loads."""
    facts = machine.facts()
    prompts = EnginePrompts()
    seconds_s = options.pick(0.5, 3.0, 10.0)
    got: dict[tuple[str, int], tuple[Served, float | None]] = {}
    with vllm_server() as server:
        known = prompts.known(TOKENS)
        warm(server.port, CHAT, known)
        for kind, clients in [*product((NEW, KNOWN), (FEW, MANY))] * options.pick(1, 2, 3):
            say(f"  radix, {kind} prompts, {clients} clients")
            enough = max(3 * clients, int(seconds_s * 150))
            bodies = known if kind == KNOWN else prompts.new(enough, TOKENS)
            plan = Plan(server.port, CHAT, bodies, clients, seconds_s)
            before = server.metrics()
            one = drive(plan, {"front end": server.front, "engine": server.engine})
            after = server.metrics()
            hits, asked = (
                sum(difference(before, after, name, "engine").values()) for name in (HITS, ASKED)
            )
            best = better(got[kind, clients][0] if (kind, clients) in got else None, one)
            if best is one:
                got[kind, clients] = one, ratio(hits, asked)
        about = server.about()
    return finding(facts, got, about)


def finding(
    facts: dict[str, Any], got: dict[tuple[str, int], tuple[Served, float | None]], about: str
) -> Finding:
    """Return the table, and whether hits help few clients only."""
    rows: list[list[Cell]] = [
        [f"{kind}, {clients} clients", one.per_s, one.p50_ms, one.p99_ms, hits, one.failed,
         one.cores["front end"], one.cores["engine"]]
        for (kind, clients), (one, hits) in got.items()
    ]  # fmt: skip
    medians = {key: one.p50_ms for key, (one, _) in got.items()}
    new, known = medians[NEW, FEW], medians[KNOWN, FEW]
    loaded = medians[KNOWN, MANY]
    helps, lost = ratio(known, new), ratio(loaded, new)
    return Finding(
        name="radix",
        title=f"the radix paradox: new and known prompts, {FEW} and {MANY} clients",
        machine=facts,
        settings={"prompt_tokens": TOKENS, "tokens_out": 1},
        tables=[
            Table(
                f"chats of {TOKENS:,} tokens, one token out",
                ["prompts", "req/s", "p50 ms", "p99 ms", "hit rate", "failed", "front end cores",
                 "engine cores"],
                rows,
            )
        ],
        plots=[
            bars("p50 of new and known prompts", "ms",
                 {f"{kind}, {clients}": value for (kind, clients), value in medians.items()},
                 log="y")
        ],
        published=[
            Beside(f"{FEW} clients, new -> known, p50", milliseconds(*PUBLISHED_MS[:2]),
                   milliseconds(new, known)),
            Beside(f"{MANY} clients, known, p50", milliseconds(PUBLISHED_MS[2]),
                   milliseconds(loaded)),
        ],
        shapes=[
            Shape(f"few clients gain by the cache ({times(PUBLISHED_MS[1], PUBLISHED_MS[0])} "
                  "published)",
                  None if helps is None else helps < 0.8, times(known, new)),
            Shape("many clients, every prompt known, wait longer than few with new ones "
                  f"({times(PUBLISHED_MS[2], PUBLISHED_MS[0])} published)",
                  None if lost is None else lost > 1.5, times(loaded, new)),
        ],
        remarks=[others_remark(one for one, _ in got.values()), about],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "radix")
