"""The first minutes of a trace end to end, beside the replay of the same minutes.

    python -m bench replay_sockets --trace FILE [--minutes 10] [--speed 10]
                                   [--gateways N] [--json]

Prompts of token ids made from the trace's block numbers go through a real gateway onto four
simulated replicas over sockets, time compressed; the share of prompt tokens that the replicas
report as cached should be what the replay foretells.

Invariants:
- Requests are sent when they are due, answered or not (an open loop).
- Equal block numbers are equal ids and other numbers other ids; prefill and decode are as much
  faster as time is.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec

from bench.tools.processes import BenchError, Process, free_ports, module, say
from bench.tools.store_server import StoreServer
from bench.tools.systems import gateway, wait_known
from tokenlane.config.settings import RoutingSettings
from tokenlane.replay import trace as traces
from tokenlane.replay.bounds import pooled_hit
from tokenlane.replay.run import Figures, FleetShape, replay
from tokenlane.replay.timed_fleet import PREFILL_TOKENS_PER_S, TOKEN_INTERVAL_S, split

REPLICAS = 4
CACHE_SHARE = 0.25
BLOCK_TOKENS = traces.MOONCAKE_BLOCK_TOKENS


@lru_cache(maxsize=100_000)
def block_text(number: int) -> str:
    """The ids of a block as JSON, without brackets: small ids keep the bodies short."""
    random = Random(number)
    return ",".join(str(random.randrange(100, 1000)) for _ in range(BLOCK_TOKENS))


def body(row: traces.Row) -> bytes:
    """A completion request with the row's prompt."""
    ids = ",".join(map(block_text, row.hash_ids)).split(",", row.input_length)[: row.input_length]
    return (
        f'{{"model":"demo","prompt":[{",".join(ids)}],"max_tokens":{max(row.output_length, 1)},'
        '"stream":true,"stream_options":{"include_usage":true}}'
    ).encode()


class Driven(msgspec.Struct):
    """What the replicas reported of prompts, the latest sending, and how long first tokens took
    since they were due, summed."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    late_s: float = 0.0
    ttfts_s: float = 0.0


async def _drive(urls: list[str], rows: list[traces.Row], speed: float) -> Driven:
    """Send each row when it is due to a gateway drawn by lot."""
    totals, random = Driven(), Random(1)
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def one(row: traces.Row, url: str, due_s: float) -> None:
            headers = {"content-type": "application/json"}
            async with session.post(
                f"{url}/v1/completions", data=body(row), headers=headers
            ) as answer:
                if answer.status != 200:
                    raise BenchError(f"status {answer.status}: {(await answer.read())[:200]!r}")
                first = await answer.content.readuntil(b"\n\n")
                totals.ttfts_s += time.monotonic() - due_s
                text = first + await answer.read()
            told = text.rpartition(b"data: {")[2].partition(b"\n")[0]
            usage = msgspec.json.decode(b"{" + told)["usage"]
            totals.prompt_tokens += usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            totals.cached_tokens += details.get("cached_tokens", 0)

        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for row in rows:
                due_s = began_s + (row.timestamp - rows[0].timestamp) / 1e3 / speed
                await asyncio.sleep(max(due_s - time.monotonic(), 0))
                totals.late_s = max(totals.late_s, time.monotonic() - due_s)
                group.create_task(one(row, random.choice(urls), due_s))
    return totals


def run(path: Path, minutes: float, speed: float, gateways: int = 1) -> dict[str, Any]:
    """Both hit rates, and how far apart they are in points. gateways: several share a store, and
    the replicas publish KV events."""
    whole = traces.read(path)
    cache_blocks = split(whole.working_set_blocks, CACHE_SHARE, REPLICAS)
    first = whole.first(60 * minutes)
    shape = FleetShape(REPLICAS, cache_blocks)
    foretold = Figures.of(replay(first, shape, RoutingSettings()), REPLICAS)
    rows = traces.rows(path)[: len(first.requests)]
    ports = free_ports(REPLICAS)
    argv = module(
        "tokenlane", "simulate", "--replicas", str(REPLICAS), "--port", str(ports[0]),
        "--block-tokens", str(BLOCK_TOKENS), "--cache-blocks", str(cache_blocks),
        "--prefill-tokens-per-s", str(PREFILL_TOKENS_PER_S * speed),
        "--token-interval-s", str(TOKEN_INTERVAL_S / speed), "--max-model-tokens", "1000000",
    )  # fmt: skip
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        flags = ["--policy", "affinity", "--routing-block-tokens", str(BLOCK_TOKENS)]
        if gateways > 1:
            argv += ["--kv-events", "maps"]
            flags += ["--fleet-store", stack.enter_context(StoreServer()).url]
        fleet = stack.enter_context(Process("simulate", argv))
        for port in ports:
            fleet.wait_listening(port)
        ours = [
            stack.enter_context(gateway(urls, None, *flags, plain=True)) for _ in range(gateways)
        ]
        for one in ours:
            assert one.admin_port is not None
            wait_known(one.admin_port)
        say(f"{len(rows)} requests, about {60 * minutes / speed:.0f} s")
        driven = asyncio.run(_drive([one.url for one in ours], rows, speed))
    prompt_tokens, late_s = driven.prompt_tokens, driven.late_s
    if prompt_tokens != first.prompt_tokens:
        raise BenchError(f"{prompt_tokens} prompt tokens arrived of {first.prompt_tokens}")
    hit = driven.cached_tokens / prompt_tokens
    return {
        "trace": whole.name,
        "requests": len(rows),
        "gateways": gateways,
        "ttft_mean_s": driven.ttfts_s / len(rows),
        "prompt_tokens": prompt_tokens,
        "speed": speed,
        "hit": hit,
        "replay_hit": foretold.hit,
        "pooled_bound_hit": pooled_hit(first, REPLICAS * cache_blocks),
        "points_apart": 100 * (hit - foretold.hit),
        "latest_sending_s": late_s,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench replay_sockets")
    parser.add_argument("--trace", type=Path, required=True, help="Mooncake JSONL or JSONL.gz")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the trace's own time")
    parser.add_argument("--speed", type=float, default=10.0, help="times the trace's own pace")
    parser.add_argument("--gateways", type=int, default=1, help="that share a store (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    options = parser.parse_args()
    try:
        told = run(options.trace, options.minutes, options.speed, options.gateways)
    except BenchError as error:
        sys.exit(str(error))
    if options.json:
        print(json.dumps(told, indent=2))
        return
    print(
        f"{told['requests']} requests at {told['speed']:g} x: {told['hit']:.1%} of the prompt"
        f" tokens cached over sockets, {told['replay_hit']:.1%} in the replay"
        f" ({told['points_apart']:+.2f} points; pooled bound {told['pooled_bound_hit']:.1%});"
        f" first tokens after {told['ttft_mean_s'] * 1e3:.0f} ms in the mean"
    )


if __name__ == "__main__":
    main()
