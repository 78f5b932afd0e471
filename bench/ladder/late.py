"""How late the loop is while long or hostile prompts are fed to the ladder back to back."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from bench import workload
from bench.ladder.prompts import HOSTILE, TURNS, conversation, hostile, ids_of, ladder, raw
from bench.statistics import quantile
from proxy.body import ChatBody, Kind, inspect
from proxy.tokens.tokenizer import Tokenizer

_BEAT_S = 0.001


@contextmanager
def lateness(late: list[float]) -> Iterator[None]:
    """Collects how late a 1 ms beat of the running loop was, in seconds."""
    loop = asyncio.get_running_loop()
    due_s = 0.0
    handle: asyncio.TimerHandle | None = None

    def beat() -> None:
        nonlocal due_s, handle
        now_s = time.monotonic()
        if due_s:
            late.append(max(0.0, now_s - due_s))
        due_s = now_s + _BEAT_S
        handle = loop.call_later(_BEAT_S, beat)

    beat()
    try:
        yield
    finally:
        if handle is not None:
            handle.cancel()


async def back_to_back(
    tokenizer: Tokenizer, reference: Tokenizer, seconds_s: float
) -> list[dict[str, Any]]:
    """Lateness with the ladder, and with the loop encoding by itself, as most do: with the
    reference engines."""
    bodies = [raw(conversation(100_000, TURNS, 10**9 + n * 1000)) for n in range(8)]
    service = ladder(tokenizer)

    async def by_ladder(body: bytes) -> None:
        await ids_of(service, body)

    async def inline(body: bytes) -> None:
        request = inspect(Kind.CHAT, body)
        assert isinstance(request, ChatBody)
        reference.chat_ids(request)
        await asyncio.sleep(0)

    async def nothing(_body: bytes) -> None:
        await asyncio.sleep(0.01)

    rows = []
    for name, feed in (("nothing", nothing), ("ladder", by_ladder), ("inline", inline)):
        late: list[float] = []
        count = 0
        until_s = time.monotonic() + seconds_s
        with lateness(late):
            while time.monotonic() < until_s:
                if name == "ladder":
                    service.cache.clear()  # every prompt is new to the whole-request cache
                await feed(bodies[count % len(bodies)])
                count += 1
        rows.append(
            {
                "feed": name,
                "prompts": count,
                **{f"p{share:g}": ms(quantile(late, share / 100)) for share in (50, 99, 99.9, 100)},
            }
        )
    service.close()
    return rows


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
        late: list[float] = []
        rungs: Counter[str] = Counter()
        until_s = time.monotonic() + seconds_s
        with lateness(late):
            fed = [feed(parts, until_s) for _ in range(service.threads.count)]
            for took in await asyncio.gather(*fed):
                rungs += took
        rows.append(
            {
                "feed": kind,
                "prompts": sum(rungs.values()),
                "rungs": sorted(rungs),
                **{f"p{share:g}": ms(quantile(late, share / 100)) for share in (50, 99, 99.9, 100)},
            }
        )
    service.close()
    return rows


def ms(seconds_s: float | None) -> float | None:
    """The same in milliseconds."""
    return None if seconds_s is None else seconds_s * 1e3
