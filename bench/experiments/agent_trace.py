"""Agent conversations through the gateway onto four simulated replicas that evict nothing.

    python -m bench agent_trace --trace FILE [--json]

Asks three things of a policy: how much of what one infinite cache would give do the replicas
report as cached, how evenly is the prefill work spread, and does the gateway predict what a
replica will report. Everything is real but the GPU: processes, sockets, templates, token ids.

Invariants:
- Each policy starts with empty caches and a gateway that knows nothing.
- Time is compressed, order is kept: a session's next request is sent when it is due, and never
  before its predecessor was answered, as an agent would.
- Work, cached tokens and predictions are what the replicas and the answers' headers say.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.loads import text_trace
from bench.loads.workload import CHAT
from bench.tools import machine
from bench.tools.client import fetch
from bench.tools.demo_model import MODEL, MODEL_FOLDER
from bench.tools.processes import BenchError, Process, free_ports, module, say
from bench.tools.scrape import parse
from bench.tools.statistics import Cell, table
from bench.tools.systems import gateway, wait_known
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.tokenizer import Tokenizer

REPLICAS = 4
POLICIES = ("affinity", "round-robin")


class Details(msgspec.Struct):
    """usage.prompt_tokens_details."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """usage, as far as it is needed."""

    prompt_tokens: int
    prompt_tokens_details: Details | None = None


class Answer(msgspec.Struct):
    """A chat completion, as far as it is needed."""

    usage: Usage


class Served(msgspec.Struct, frozen=True):
    """What one request got. predicted_tokens: None if the gateway made no prediction."""

    replica: str
    route: str
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int | None


async def replay(url: str, turns: Sequence[text_trace.Turn], speed: float) -> list[Served]:
    """Sends all turns at `speed` times their own pace; answers in the order of the turns."""
    answered: dict[str, asyncio.Event] = {}
    started_s = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

        async def send(
            turn: text_trace.Turn, before: asyncio.Event | None, own: asyncio.Event
        ) -> Served:
            await asyncio.sleep(turn.due_s / speed - (time.monotonic() - started_s))
            if before is not None:
                await before.wait()
            headers = {"content-type": "application/json"}
            async with session.post(url + CHAT, data=turn.body, headers=headers) as answer:
                body = await answer.read()
                own.set()
                if answer.status != 200:
                    raise BenchError(f"the gateway answered {answer.status}: {body[:300]!r}")
                return served(answer.headers, body)

        tasks = []
        for turn in turns:
            before, own = answered.get(turn.session), asyncio.Event()
            answered[turn.session] = own
            tasks.append(group.create_task(send(turn, before, own)))
    return [task.result() for task in tasks]


def replayed(url: str, turns: Sequence[text_trace.Turn], speed: float) -> list[Served]:
    """`replay` to its end. Raises BenchError at the first request that fails."""
    try:
        return asyncio.run(replay(url, turns, speed))
    except* (BenchError, aiohttp.ClientError) as failures:
        raise BenchError(f"the replay failed: {failures.exceptions[0]}") from None


def served(headers: Any, body: bytes) -> Served:
    """One answer. headers: case-insensitive mapping."""
    usage = msgspec.json.decode(body, type=Answer).usage
    details = usage.prompt_tokens_details
    if details is None:
        raise BenchError("the replicas do not report cached tokens")
    predicted = headers.get("x-tokenlane-cached-tokens")
    return Served(
        headers.get("x-tokenlane-replica", "?"),
        headers.get("x-tokenlane-route", "?"),
        usage.prompt_tokens,
        details.cached_tokens,
        None if predicted is None else int(predicted),
    )


def judge(requests: Sequence[Served], bound_tokens: int, block_tokens: int) -> dict[str, Any]:
    """The five numbers of a policy. work_imbalance: the busiest replica's uncached prompt
    tokens over the mean of all REPLICAS."""
    work: Counter[str] = Counter()
    for one in requests:
        work[one.replica] += one.prompt_tokens - one.cached_tokens
    cached_tokens = sum(one.cached_tokens for one in requests)
    near = sum(
        one.predicted_tokens is not None
        and abs(one.predicted_tokens - one.cached_tokens) <= block_tokens
        for one in requests
    )
    return {
        "cached_tokens": cached_tokens,
        "bound_tokens": bound_tokens,
        "share_of_bound": cached_tokens / bound_tokens if bound_tokens else 1.0,
        "work_imbalance": max(work.values()) * REPLICAS / max(work.total(), 1),
        "predicted_within_one_block": near / len(requests),
    }


def replica_block_tokens(port: int) -> int:
    """The block size a replica reports."""
    for name, labels in parse(fetch(port, "/metrics").body.decode()):
        if name == "vllm:cache_config_info":
            return int(dict(labels)["block_size"])
    raise BenchError("the simulated replicas do not report vllm:cache_config_info")


def run(
    path: Path,
    policies: Sequence[str],
    speed: float,
    output_tokens: int,
    prefill_tokens_per_s: float,
) -> dict[str, Any]:
    """The whole measurement. prefill_tokens_per_s: of a replica, at the trace's own speed."""
    rows = text_trace.rows(path)
    turns = text_trace.turns(rows, MODEL, output_tokens)
    tokenizer = Tokenizer.load(MODEL, MODEL_FOLDER)
    say(f"agent trace: counting the tokens of {len(turns)} prompts")
    ids = [tokenizer.chat_ids(msgspec.json.decode(turn.body, type=ChatFields)) for turn in turns]
    bound_tokens = block_tokens = 0
    result: dict[str, Any] = {"policies": {}}
    routes: dict[str, dict[str, int]] = {}
    for policy in policies:
        ports = free_ports(REPLICAS)
        rate = str(prefill_tokens_per_s * speed)
        argv = module(
            "tokenlane", "simulate", "--replicas", str(REPLICAS), "--port", str(ports[0]),
            "--prefill-tokens-per-s", rate,
        )  # fmt: skip
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        with Process("simulate", argv) as fleet:
            for port in ports:
                fleet.wait_listening(port)
            if not block_tokens:
                block_tokens = replica_block_tokens(ports[0])
                bound_tokens = text_trace.bound_tokens(ids, block_tokens)
            # Where prompts go does not depend on the build, and the plain one is always there.
            with gateway(urls, None, "--policy", policy, plain=True) as ours:
                assert ours.admin_port is not None
                wait_known(ours.admin_port)
                say(f"agent trace: {policy}, about {turns[-1].due_s / speed:.0f} s")
                requests = replayed(ours.url, turns, speed)
        wrong = sum(
            len(one) // 4 != got.prompt_tokens for one, got in zip(ids, requests, strict=True)
        )
        if wrong:
            raise BenchError(f"{wrong} prompts have other token counts at the replica than here")
        result["policies"][policy] = judge(requests, bound_tokens, block_tokens)
        routes[policy] = dict(Counter(one.route for one in requests).most_common())
    result["settings"] = {
        "trace": path.name,
        "requests": len(turns),
        "sessions": len({turn.session for turn in turns}),
        "prompt_tokens": sum(map(len, ids)) // 4,
        "speed": speed,
        "output_tokens": output_tokens,
        "prefill_tokens_per_s": prefill_tokens_per_s,
        "replicas": REPLICAS,
        "block_tokens": block_tokens,
        "eviction": None,
        "routes": routes,
    }
    result["machine"] = machine.facts()
    return result


def show(result: dict[str, Any]) -> str:
    """Machine and settings above, the table, and why requests went where they went."""
    at = result["settings"]
    settings = (
        f"{at['trace']}: {at['requests']} requests of {at['sessions']} sessions, "
        f"{at['prompt_tokens']:,} prompt tokens, {at['speed']:g} x its own speed, "
        f"{at['output_tokens']} tokens an answer\n"
        f"{at['replicas']} simulated replicas, blocks of {at['block_tokens']} tokens, "
        f"nothing evicted,\nprefill {at['prefill_tokens_per_s']:,.0f} tokens/s at the trace's own "
        "speed; one gateway worker\n"
        "wanted of affinity: share of bound >= 0.95, imbalance <= 1.6, predicted >= 0.99"
    )
    header = ["policy", "cached tokens", "bound", "share", "imbalance", "predicted within a block"]
    rows: list[list[Cell]] = [
        [
            policy,
            one["cached_tokens"],
            one["bound_tokens"],
            float(one["share_of_bound"]),
            float(one["work_imbalance"]),
            float(one["predicted_within_one_block"]),
        ]
        for policy, one in result["policies"].items()
    ]
    remarks = [
        f"{policy}: " + ", ".join(f"{route} {count}" for route, count in counts.items())
        for policy, counts in at["routes"].items()
    ]
    return "\n".join(
        [machine.describe(result["machine"]), settings, "", table(header, rows), "", *remarks]
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench agent_trace",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trace", type=Path, required=True, help="text trace, JSONL or JSONL.gz")
    parser.add_argument("--policies", default=",".join(POLICIES), help="separated by commas")
    parser.add_argument("--speed", type=float, default=20.0, help="times the trace's own pace")
    parser.add_argument("--output-tokens", type=int, default=16, help="of each answer")
    parser.add_argument(
        "--prefill",
        type=float,
        default=10_000.0,
        help="tokens/s of a replica at the trace's own speed, compressed with it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    try:
        result = run(
            options.trace,
            options.policies.split(","),
            options.speed,
            options.output_tokens,
            options.prefill,
        )
    except BenchError as error:
        sys.exit(str(error))
    print(
        msgspec.json.format(msgspec.json.encode(result)).decode() if options.json else show(result)
    )


if __name__ == "__main__":
    main()
