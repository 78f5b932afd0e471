"""How late the loop is while long or hostile prompts are fed to the ladder back to back."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count, cycle
from typing import Any

from bench import workload
from bench.ladder.beat import beating
from bench.ladder.prompts import (
    HOSTILE,
    TURNS,
    conversation,
    hostile,
    ids_of,
    ladder,
    raw,
    renewed,
)
from bench.processes import one_core
from proxy.body import ChatBody, Kind, inspect
from proxy.tokens.tokenizer import Tokenizer


async def back_to_back(
    tokenizer: Tokenizer, reference: Tokenizer, seconds_s: float
) -> list[dict[str, Any]]:
    """Lateness with the ladder: of eight conversations in turn (the request cache emptied each
    time), also where its threads may use all cores, and of prompts that have no message in common;
    and with the loop encoding by itself, as most do: with the reference engines."""
    told = [conversation(100_000, TURNS, 10**9 + n * 1000) for n in range(8)]
    known = cycle([raw(messages) for messages in told])
    fresh = cycle([renewed(messages) for messages in told[:4]])
    service = ladder(tokenizer)

    async def nothing() -> None:
        await asyncio.sleep(0.01)

    async def by_ladder() -> None:
        service.cache.clear()  # every prompt is new to the whole-request cache
        await ids_of(service, next(known))

    async def all_new() -> None:
        await ids_of(service, next(fresh)())

    async def inline() -> None:
        request = inspect(Kind.CHAT, next(known))
        assert isinstance(request, ChatBody)
        reference.chat_ids(request)
        await asyncio.sleep(0)

    with one_core():
        rows = [
            await _fed("nothing", nothing, seconds_s),
            await _fed("100k, the ladder", by_ladder, seconds_s),
        ]
    rows.append(await _fed("the same, all cores", by_ladder, seconds_s))
    with one_core():
        rows += [
            await _fed("100k new, the ladder", all_new, seconds_s),
            await _fed("100k, inline", inline, seconds_s),
        ]
    service.close()
    return rows


async def _fed(name: str, feed: Callable[[], Awaitable[None]], seconds_s: float) -> dict[str, Any]:
    count = 0
    until_s = time.monotonic() + seconds_s
    with beating() as beats:
        while time.monotonic() < until_s:
            await feed()
            count += 1
    return {"feed": name, "prompts": count, **beats.row()}


async def under_attack(tokenizer: Tokenizer, seconds_s: float) -> list[dict[str, Any]]:
    """Lateness while as many hostile prompts, all new, are in hand as the pool has threads."""
    service = ladder(tokenizer)
    numbers = count()
    rows = []

    async def feed(parts: list[workload.Parts], until_s: float) -> Counter[str]:
        took: Counter[str] = Counter()
        while time.monotonic() < until_s:
            number = next(numbers)
            head, tail = parts[number % len(parts)]
            outcome = await ids_of(service, b"%b%016d%b" % (head, number, tail))
            took[outcome.rung.value] += 1
        return took

    for kind in HOSTILE:
        parts = [workload.numbered([("user", hostile(kind, seed))]) for seed in range(4)]
        rungs: Counter[str] = Counter()
        until_s = time.monotonic() + seconds_s
        with beating() as beats:
            fed = [feed(parts, until_s) for _ in range(service.threads.count)]
            for took in await asyncio.gather(*fed):
                rungs += took
        rows.append(
            {
                "feed": kind,
                "prompts": sum(rungs.values()),
                "rungs": sorted(rungs),
                **beats.row(),
            }
        )
    service.close()
    return rows
