"""How late the loop is while long or hostile prompts are fed to the ladder back to back.

Invariant: feeds take turns, and a figure is the median of its rounds (the largest of all for the
maximum): what the machine does for a second or two is no feed's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from itertools import count, cycle
from typing import Any, NamedTuple

from bench.experiments.ladder.beat import Row, beating, middle
from bench.loads import workload
from bench.loads.prompts import HOSTILE, TURNS, conversation, hostile, ids_of, ladder, raw, renewed
from bench.tools.processes import one_core
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.tokenizer import Tokenizer

_ROUNDS = 5


class Feed(NamedTuple):
    """Prompts, one for each call, so many at once; on one core or on all."""

    name: str
    next: Callable[[], Awaitable[object]]
    at_once: int = 1
    on_one_core: bool = True


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
        await asyncio.sleep(0)  # the next request comes by the loop

    async def all_new() -> None:
        await ids_of(service, next(fresh)())
        await asyncio.sleep(0)

    async def inline() -> None:
        request = inspect(Kind.CHAT, next(known))
        assert isinstance(request, ChatBody)
        reference.chat_ids(request)
        await asyncio.sleep(0)

    feeds = [
        Feed("nothing", nothing),
        Feed("100k, the ladder", by_ladder),
        Feed("the same, all cores", by_ladder, on_one_core=False),
        Feed("100k new, the ladder", all_new),
        Feed("100k, inline", inline),
    ]
    rows = await _in_turn(feeds, seconds_s)
    service.close()
    return rows


async def under_attack(tokenizer: Tokenizer, seconds_s: float) -> list[dict[str, Any]]:
    """Lateness while as many hostile prompts, all new, are in hand as the pool has threads."""
    service = ladder(tokenizer)
    numbers = count()

    def feed(kind: str) -> Feed:
        texts = [hostile(kind, seed) for seed in range(4)]
        parts = [workload.numbered(workload.said([("user", one)])) for one in texts]

        async def hostile_one() -> None:
            number = next(numbers)
            head, tail = parts[number % len(parts)]
            await ids_of(service, b"%b%016d%b" % (head, number, tail))

        return Feed(kind, hostile_one, service.threads.count)

    rows = await _in_turn([feed(kind) for kind in HOSTILE], seconds_s)
    service.close()
    return rows


async def _in_turn(feeds: list[Feed], seconds_s: float) -> list[dict[str, Any]]:
    rounds: list[list[tuple[int, Row]]] = [[] for _ in feeds]
    for _ in range(_ROUNDS):
        for feed, measured in zip(feeds, rounds, strict=True):
            with one_core() if feed.on_one_core else nullcontext():
                measured.append(await _fed(feed, seconds_s / _ROUNDS))
    return [
        {
            "feed": feed.name,
            "prompts": sum(prompts for prompts, _ in measured),
            **middle([row for _, row in measured]),
        }
        for feed, measured in zip(feeds, rounds, strict=True)
    ]


async def _fed(feed: Feed, seconds_s: float) -> tuple[int, Row]:
    """How many prompts, and how late the loop was."""
    prompts = 0
    until_s = time.monotonic() + seconds_s

    async def one_behind_another() -> None:
        nonlocal prompts
        while time.monotonic() < until_s:
            await feed.next()
            prompts += 1

    with beating() as beats:
        await asyncio.gather(*[one_behind_another() for _ in range(feed.at_once)])
    return prompts, beats.row()
