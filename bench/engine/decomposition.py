"""Where a request's time goes: client, gateway, front end, queue, prefill and decode.

    python -m bench decomposition [--quick | --full]

Closed loop through one `tokenlane` to one vLLM server, new prompts, 32 tokens out as a stream, once
as text and once as ids. Eight scenarios: 1, 16 and 32 clients by context, to what two cores bear;
a longer one is scaled from two that were measured, and named so. Stages are explained in
bench/tools/request_stages.py. One source finds 94 % of the overhead in scheduling and queue wait,
another says that tokenizing is under 1 % of a request.
"""

import json
from statistics import fmean
from typing import Any, NamedTuple

from bench.loads.clients import Served, Spender, drive, others_remark
from bench.loads.closed_loop import Plan
from bench.loads.engine_prompts import EnginePrompts
from bench.loads.workload import CHAT
from bench.tools import accelerator, machine, request_stages, scrape
from bench.tools.command_line import Options, main
from bench.tools.engines import spent_ms
from bench.tools.finding import Beside, Finding, Plot, Series, Shape, Table
from bench.tools.processes import say
from bench.tools.request_stages import STAGES, Stages
from bench.tools.statistics import Cell, ratio
from bench.tools.systems import Proxy, gateway, wait_proven
from bench.tools.vllm_server import Server, vllm_server

OUT = 32
SCALED_TOKENS = 32_000
# About what two cores prefill; it says how many prompts a scenario takes.
TOKENS_PER_S = 40_000
OVERHEAD = ("gateway", "HTTP and waiting", "template, tokenize, hand over", "queue")
WAITING = ("HTTP and waiting", "queue")
LMCACHE = "needs CUDA"
LMCACHE_REMARK = (
    "LMCache 0.5.6 needs CUDA: its column can be filled on a GPU host, where it is a connector of "
    "vLLM's (`--kv-transfer-config`)"
)
TEXT, IDS = "text", "ids"


class Scenario(NamedTuple):
    """So many clients with prompts of so many tokens."""

    clients: int
    tokens: int


class Split(NamedTuple):
    """A scenario's stages, and who spent the CPU. gpu: the accelerator's share of the time."""

    stages: Stages
    served: Served
    gpu: float | None


def scenarios(options: Options) -> list[Scenario]:
    """Return the scenarios of a form: eight, but for the smoke run."""
    few, mid, long = options.pick((500, 0, 0), (1_000, 4_000, 8_000), (1_000, 8_000, 16_000))
    if not mid:
        return [Scenario(1, few)]
    lone = [Scenario(1, tokens) for tokens in (few, mid, long)]
    some = [Scenario(16, tokens) for tokens in (few, mid, long)]
    return [*lone, *some, Scenario(32, few), Scenario(32, mid)]


def measure(
    server: Server, through: Proxy, prompts: EnginePrompts, one: Scenario, seconds_s: float
) -> Split:
    """Measure one scenario through one gateway."""
    assert through.admin_port is not None
    # Each is sent once and answered: then all clocks speak of the same requests.
    count = max(4 * one.clients, int(seconds_s * TOKENS_PER_S / one.tokens))
    bodies = prompts.new(count, one.tokens)
    plan = Plan(
        through.port, CHAT, bodies, one.clients, seconds_s, limit_s=40.0, once=True, keep=True
    )
    spenders: dict[str, Spender] = {
        "gateway": through.process, "front end": server.front, "engine": server.engine
    }  # fmt: skip
    before = server.metrics(), scrape.samples(through.admin_port)
    with accelerator.busy() as busy:
        served = drive(plan, spenders)
    after = server.metrics(), scrape.samples(through.admin_port)
    whole = served.answered
    asked, answer = json.loads(bodies[0]), whole[-1].answer
    stages = request_stages.combined(
        fmean((call.done_s - call.began_s) * 1e3 for call in whole),
        request_stages.mean_ms(before[0], after[0], "vllm:e2e_request_latency_seconds"),
        request_stages.gateway_ms(before[1], after[1]),
        request_stages.own_metrics(call.answer for call in whole),
        {
            "serialize": spent_ms(lambda _: json.dumps(asked), "", 20),
            "parse": spent_ms(lambda _: request_stages.events(answer), "", 20),
        },
    )
    return Split(stages, served, busy.mean)


def run(options: Options) -> Finding:
    """Measure all scenarios as text and as ids."""
    facts = machine.facts()
    seconds_s = options.pick(0.5, 3.0, 15.0)
    got: dict[str, dict[Scenario, Split]] = {TEXT: {}, IDS: {}}
    prompts = EnginePrompts(OUT, stream=True)
    with vllm_server() as server:
        for way, mode in ((TEXT, "off"), (IDS, "all")):
            flags = ("--tokens-forward-tokens", mode)
            with gateway([server.url], None, *flags, plain=options.plain) as through:
                assert through.admin_port is not None
                wait_proven(through.admin_port)
                for one in scenarios(options):
                    say(f"  decomposition, {way}, {one.clients} clients, {one.tokens:,} tokens")
                    got[way][one] = measure(server, through, prompts, one, seconds_s)
        about = server.about()
    return finding(facts, got, about)


def share(stages: Stages, names: tuple[str, ...], of: tuple[str, ...]) -> float | None:
    """Return which part of some stages' time others of them take."""
    return ratio(sum(stages[name] or 0.0 for name in names),
                 sum(stages[name] or 0.0 for name in of))  # fmt: skip


def table(way: str, got: dict[Scenario, Split]) -> Table:
    """Return one way's scenarios, the scaled one last."""
    rows: list[list[Cell]] = [
        [f"{one.clients}, {one.tokens:,}", *(split.stages[stage] for stage in STAGES),
         *(split.served.cores[part] for part in ("gateway", "front end", "engine", "load")),
         split.gpu, LMCACHE]
        for one, split in got.items()
    ]  # fmt: skip
    lone = [one for one in got if one.clients == 1]
    if len(lone) > 2:
        short, long = lone[-2:]
        stages = request_stages.scaled(got[short].stages, got[long].stages,
                                       (short.tokens, long.tokens), SCALED_TOKENS)  # fmt: skip
        cells: list[Cell] = [f"1, {SCALED_TOKENS:,} (scaled, not measured)"]
        rows.append([*cells, *(stages[stage] for stage in STAGES), *[None] * 5, LMCACHE])
    header = ["clients, context", *STAGES, "gateway cores", "front end cores", "engine cores",
              "load cores", "GPU share", "LMCache"]  # fmt: skip
    return Table(f"as {way}: mean ms of a request, and cores", header, rows)


def finding(facts: dict[str, Any], got: dict[str, dict[Scenario, Split]], about: str) -> Finding:
    """Return both tables, the stages as bars, and where the overhead is."""
    texts = got[TEXT]
    first, last = next(iter(texts)), list(texts)[-1]
    front = ("template, tokenize, hand over",)
    waits = share(texts[last].stages, WAITING, OVERHEAD)
    alone, loaded = (share(texts[one].stages, front, STAGES) for one in (first, last))
    by_ids = share(got[IDS][last].stages, front, STAGES)
    return Finding(
        name="decomposition",
        title=f"where a request's time goes: new prompts, {OUT} tokens out, as text and as ids",
        machine=facts,
        settings={"tokens_out": OUT},
        tables=[table(way, by) for way, by in got.items()],
        plots=[
            Plot(
                title="a request's stages by clients and context, as text", x="", y="ms", log="y",
                kind="bars", labels=[f"{one.clients}, {one.tokens:,}" for one in texts],
                series=[
                    Series(stage, [(float(at), split.stages[stage] or 0.0)
                                   for at, split in enumerate(texts.values())])
                    for stage in STAGES
                ],
            )
        ],
        published=[
            Beside("scheduling and queue wait, of the overhead", "94 %",
                   f"{waits or 0.0:.0%} ({last.clients} clients, {last.tokens:,} tokens; HTTP's "
                   "waiting counted)"),
            Beside("tokenizing, of a request", "under 1 %",
                   f"{alone or 0.0:.1%} alone, {loaded or 0.0:.1%} with {last.clients} clients "
                   "(template and the way to the engine counted)"),
        ],
        shapes=[
            Shape("under load most of the overhead is waiting, not work",
                  None if waits is None else waits > 0.5, f"{waits or 0.0:.0%}"),
            Shape("as ids a request spends less of its time in vLLM's front end",
                  None if by_ids is None or loaded is None else by_ids < loaded,
                  f"{loaded or 0.0:.1%} as text, {by_ids or 0.0:.1%} as ids"),
        ],
        remarks=[
            LMCACHE_REMARK,
            "a row that is named scaled is drawn from the two before it, by a line",
            others_remark(one.served for by in got.values() for one in by.values()),
            *([] if accelerator.name() else [accelerator.ABSENT]),
            about,
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main(run, __doc__, "decomposition")
