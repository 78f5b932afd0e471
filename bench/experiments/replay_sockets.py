"""The first minutes of a trace end to end, beside the replay of the same minutes.

    python -m bench replay_sockets --trace FILE [--minutes 10] [--speed 10] [--json]

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
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec

from bench.tools.processes import BenchError, Process, free_ports, module, say
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
        f'{{"model":"demo","prompt":[{",".join(ids)}],"max_tokens":{max(row.output_length, 1)}}}'
    ).encode()


async def _drive(url: str, rows: list[traces.Row], speed: float) -> tuple[int, int, float]:
    """Prompt and cached tokens as the replicas report them, and the latest sending (s)."""
    totals, late_s = [0, 0], 0.0
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def one(row: traces.Row) -> None:
            headers = {"content-type": "application/json"}
            async with session.post(
                f"{url}/v1/completions", data=body(row), headers=headers
            ) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise BenchError(f"status {answer.status}: {text[:200]!r}")
                usage = msgspec.json.decode(text)["usage"]
                totals[0] += usage["prompt_tokens"]
                totals[1] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for row in rows:
                due_s = began_s + (row.timestamp - rows[0].timestamp) / 1e3 / speed
                await asyncio.sleep(max(due_s - time.monotonic(), 0))
                late_s = max(late_s, time.monotonic() - due_s)
                group.create_task(one(row))
    return totals[0], totals[1], late_s


def run(path: Path, minutes: float, speed: float) -> dict[str, Any]:
    """Both hit rates, and how far apart they are in points."""
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
    with Process("simulate", argv) as fleet:
        for port in ports:
            fleet.wait_listening(port)
        with gateway(urls, None, "--policy", "affinity", plain=True) as ours:
            assert ours.admin_port is not None
            wait_known(ours.admin_port)
            say(f"{len(rows)} requests, about {60 * minutes / speed:.0f} s")
            prompt_tokens, cached_tokens, late_s = asyncio.run(_drive(ours.url, rows, speed))
    if prompt_tokens != first.prompt_tokens:
        raise BenchError(f"{prompt_tokens} prompt tokens arrived of {first.prompt_tokens}")
    hit = cached_tokens / prompt_tokens
    return {
        "trace": whole.name,
        "requests": len(rows),
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
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    options = parser.parse_args()
    try:
        told = run(options.trace, options.minutes, options.speed)
    except BenchError as error:
        sys.exit(str(error))
    if options.json:
        print(json.dumps(told, indent=2))
        return
    print(
        f"{told['requests']} requests at {told['speed']:g} x: {told['hit']:.1%} of the prompt"
        f" tokens cached over sockets, {told['replay_hit']:.1%} in the replay"
        f" ({told['points_apart']:+.2f} points; pooled bound {told['pooled_bound_hit']:.1%})"
    )


if __name__ == "__main__":
    main()
