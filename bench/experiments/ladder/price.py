"""What ids cost a request: on the loop and off it, beside a hop to a thread and a decision."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.loads.prompts import BLOCK_TOKENS, TURNS, agent, conversation, ids_of, ladder, raw
from tokenlane.config.settings import RoutingSettings
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.routing.decision import Query
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.router import Router
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

SIZES_TOKENS = (1_000, 4_000, 16_000, 100_000)


async def cost_us(service: TokenService, body: bytes) -> tuple[float, float, str]:
    """CPU of one request: on the loop, in other threads, and its rung."""
    loop_s, all_s = time.thread_time(), time.process_time()
    outcome = await ids_of(service, body)
    loop_s, all_s = time.thread_time() - loop_s, time.process_time() - all_s
    return loop_s * 1e6, max(0.0, all_s - loop_s) * 1e6, outcome.rung.value


async def prices(
    tokenizer: Tokenizer, repeats: int, sizes_tokens: Sequence[int]
) -> list[dict[str, Any]]:
    """Medians for each size and kind of request."""
    service = ladder(tokenizer)
    rows = []
    for tokens in sizes_tokens:
        measured: dict[str, list[tuple[float, float, str]]] = {}
        for repeat in range(repeats + 1):
            messages = conversation(tokens, TURNS, 1000 * tokens + repeat * TURNS)
            longer = conversation(tokens, TURNS + 2, 1000 * tokens + repeat * TURNS)
            asked = {
                "new": raw(messages),
                "repeated": raw(messages),
                "next turn": raw(messages + longer[TURNS:]),
            }
            told = agent(tokens, TURNS + 1, 1000 * tokens + repeat)
            asked["agent"] = raw([one for turn in told[:-1] for one in turn])
            asked["agent's next turn"] = raw([one for turn in told for one in turn])
            for kind, body in asked.items():
                cost = await cost_us(service, body)
                if repeat:  # the first one warms the encoder
                    measured.setdefault(kind, []).append(cost)
        for kind, costs in measured.items():
            rows.append(
                {
                    "tokens": tokens,
                    "kind": kind,
                    "loop_us": statistics.median(one[0] for one in costs),
                    "off_us": statistics.median(one[1] for one in costs),
                    "rungs": sorted({one[2] for one in costs}),
                }
            )
    service.close()
    return rows


async def hop_us(count: int = 2000) -> float:
    """Wall time of handing nothing to a thread and back, as the published figure counts it."""
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(count):
        began_s = time.perf_counter()
        await loop.run_in_executor(None, int)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1e6


def decision_us(tokens: int = 100_000, replicas: int = 8, count: int = 500) -> float:
    """One decision for a prompt of this length that all replicas know in part."""
    router = Router(RoutingSettings(), LocalBoard())
    states = [
        ReplicaState(id=f"r{n}", slot=n, url="", up=True, models=("m",), block_tokens=BLOCK_TOKENS)
        for n in range(replicas)
    ]
    router.update(FleetState(1, tuple(states)))
    hashes = random.Random(1).randbytes(8 * (tokens // BLOCK_TOKENS))
    for slot in range(replicas):
        router.learn(slot, hashes[: len(hashes) * (slot + 1) // (8 * replicas) * 8])
    query = Query(hashes, BLOCK_TOKENS, tokens, tokens)
    among = router.eligible("m", 0.0)
    return _each_us(lambda: router.decide(query, among), count)


def _each_us(run: Callable[[], object], count: int) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - began_s) / count * 1e6
