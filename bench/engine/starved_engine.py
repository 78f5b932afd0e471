"""An engine whose front end is starved of CPU: 2, 1, 0.5 and 0.25 cores, by text and by ids.

    python -m bench starved_engine [--quick | --full]

Open loop, straight to one vLLM server: chats of 4,400 tokens that its cache knows, one token out,
so that an answer's end is its first token; the better of two runs. Text and ids get the same rate:
a fifth more than a front end of a quarter core can do of text, by the CPU of its requests.
(In a closed loop ids would bring more requests and so more load.) Judged by p99: a median does not
tell of those that wait for the next tenth of a second. The quota holds the front end's
process alone: HTTP, template, tokenizing; the engine keeps what there is. It is the kernel's (a
cgroup) where one can be made, else the process is stopped and continued by turns. Published: TTFT
1.36 to 5.40 times.
"""

import math
from typing import Any

from bench.engine.cpu_bound import Step, step
from bench.loads.clients import Spender, warm
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.command_line import Options, main
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table, few
from bench.tools.processes import need_tools, pause, say
from bench.tools.quota import quota_of
from bench.tools.statistics import Cell, cell, ratio
from bench.tools.vllm_server import vllm_server

TOKENS = 4_400
# To learn what a request costs; and how full the smallest quota then is, by text.
FIRST_PER_S, FILLED = 15.0, 1.2
CORES = (2.0, 1.0, 0.5, 0.25)
TEXT, IDS = "text", "ids"
NO_QUOTA = "no cgroup is writable here: the figures are those of stops, not of a quota"
PARTS = ("front end", "engine", "load", "others")
PUBLISHED = (1.36, 5.40)


def run(options: Options) -> Finding:
    """Measure both ways under all quotas, on one server."""
    need_tools("taskset")
    facts = machine.facts()
    seconds_s = options.pick(1.0, 10.0, 40.0)
    cores = options.pick((2.0, 0.5), CORES, CORES)
    prompts = EnginePrompts()
    texts = prompts.known(TOKENS)
    given = {TEXT: texts, IDS: prompts.as_ids(texts)}
    got: dict[str, dict[float, Step]] = {TEXT: {}, IDS: {}}
    with vllm_server() as server:
        spenders: dict[str, Spender] = {"front end": server.front, "engine": server.engine}
        for bodies in given.values():
            warm(server.port, CHAT, bodies)
        first = step(server.port, FIRST_PER_S, seconds_s, texts, spenders)
        rate = FILLED * min(CORES) / (first.cores["front end"] / first.served_per_s)
        with quota_of(server.front) as quota:
            for limit in cores * options.pick(1, 2, 2):
                for way, bodies in given.items():
                    say(f"  starved_engine, {way}, {limit:g} cores by {quota.how}")
                    quota.limit(limit)
                    one = step(server.port, rate, seconds_s, bodies, spenders)
                    got[way][limit] = sooner(got[way].get(limit), one)
                    quota.limit(None)
                    pause(0.5)
            how = quota.how
        about = server.about()
    return finding(facts, got, how, about)


def sooner(before: Step | None, now: Step) -> Step:
    """Return the run whose first tokens came sooner: what else a machine does only delays them."""
    if before is None or (now.p99_ms or math.inf) < (before.p99_ms or math.inf):
        return now
    return before


def slowdown(by: dict[float, Step], quantile: str) -> dict[float, float | None]:
    """Return how many times longer the first token takes than with most cores, by cores."""
    base = getattr(by[max(by)], quantile)
    return {limit: ratio(getattr(one, quantile), base) for limit, one in by.items()}


def finding(
    facts: dict[str, Any], got: dict[str, dict[float, Step]], how: str, about: str
) -> Finding:
    """Return the table, the slowdowns, and whether ids are slowed less."""
    rows: list[list[Cell]] = [
        [f"{way}, {limit:g}", one.requests, one.served_per_s, one.p50_ms, one.p99_ms,
         slowdown(by, "p50_ms")[limit], slowdown(by, "p99_ms")[limit], one.failed,
         *(one.cores[part] for part in PARTS)]
        for way, by in got.items() for limit, one in by.items()
    ]  # fmt: skip
    slow = {way: slowdown(by, "p99_ms") for way, by in got.items()}
    least = min(got[TEXT])
    text, ids = slow[TEXT][least], slow[IDS][least]
    rate = got[TEXT][least].offered_per_s
    return Finding(
        name="starved_engine",
        title="an engine's front end starved of CPU, by text and by ids",
        machine=facts,
        settings={"prompt_tokens": TOKENS, "per_s": rate, "quota": how},
        tables=[
            Table(f"{rate:.1f} chats/s, front end held by {how}",
                  ["way, cores", "requests", "served/s", "TTFT p50 ms", "p99 ms", "p50 times",
                   "p99 times", "failed", *(f"{part} cores" for part in PARTS)], rows)
        ],
        plots=[
            Plot(
                title="p99 of the first token, times that with most cores", x="cores", y="x",
                log="xy",
                series=[
                    Series(way, [(limit, value) for limit, value in by.items() if value])
                    for way, by in slow.items()
                ],
            )
        ],
        published=[
            Beside("TTFT, starved over not", f"{PUBLISHED[0]:.2f} to {PUBLISHED[1]:.2f} x",
                   f"text {cell(text)} x, ids {cell(ids)} x ({least:g} cores, p99)")
        ],
        shapes=[
            Shape("a starved front end slows the first token of text",
                  None if text is None else text > PUBLISHED[0], f"{cell(text)} x"),
            Shape("ids are slowed less",
                  None if text is None or ids is None or text < 1 else ids < text,
                  f"{cell(ids)} x"),
        ],
        remarks=[
            f"quota: {how}",
            *few(one.remark for by in got.values() for one in by.values() if one.remark),
            *([] if "cgroup quota" in how else [NO_QUOTA]),
            about,
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "starved_engine")
