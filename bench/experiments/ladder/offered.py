"""The ladder under offered load: which rungs took the prompts, and who waited."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from bench.experiments.ladder.beat import beating, ms
from bench.loads.prompts import conversation, ids_of, ladder, renewed
from bench.tools.statistics import quantile
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

# Too long for the short rung, so that it is the pool that is loaded.
LOAD_TOKENS = 16_000
_TRIAL_S = 1.0
SHARES = (0.1, 0.5, 1.0, 3.0)


async def under_load(tokenizer: Tokenizer, seconds_s: float) -> list[dict[str, Any]]:
    """Rungs by offered load, and the wait of short prompts beside it."""
    service = ladder(tokenizer)
    new_long = renewed(conversation(LOAD_TOKENS, 8, 1))
    new_short = renewed(conversation(200, 1, 2))
    per_s = await _capacity_per_s(service, new_long)
    rows = []
    for share in SHARES:
        number = max(4, int(per_s * share * seconds_s))
        # Made before the clock runs: the bench must not hold the loop that it measures.
        long = [new_long() for _ in range(number)]
        short = [new_short() for _ in range(int(seconds_s * 50))]
        rungs: Counter[str] = Counter()

        async def ask_long(body: bytes, rungs: Counter[str] = rungs) -> None:
            outcome = await ids_of(service, body)
            rungs[outcome.rung.value] += 1

        async def ask_short(body: bytes) -> None:
            await ids_of(service, body)

        with beating() as beats:
            _, waits = await asyncio.gather(
                arrivals(ask_long, long, seconds_s), arrivals(ask_short, short, seconds_s)
            )
        answered = sum(rungs.values())
        rows.append(
            {
                "share": share,
                "offered_per_s": number / seconds_s,
                "rungs": {rung: n / number for rung, n in sorted(rungs.items())},
                "lost": number - answered + len(short) - len(waits),
                "short_p99_ms": ms(quantile(waits, 0.99)),
                "late_p999_ms": ms(quantile(beats.late_s, 0.999)),
            }
        )
    service.close()
    return rows


async def _capacity_per_s(service: TokenService, make: Callable[[], bytes]) -> float:
    """How many such prompts the pool does each second where it always has some."""
    until_s = 0.0

    async def feed() -> int:
        done = 0
        while time.monotonic() < until_s:
            await ids_of(service, make())
            done += 1
        return done

    rates = []
    for _ in range(2):  # the first warms the encoder
        began_s = time.monotonic()
        until_s = began_s + _TRIAL_S
        done = await asyncio.gather(*(feed() for _ in range(2 * service.threads.count)))
        rates.append(sum(done) / (time.monotonic() - began_s))
    return rates[-1]


async def arrivals(
    ask: Callable[[bytes], Awaitable[None]],
    bodies: list[bytes],
    seconds_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[float]:
    """Send bodies at even times, whether or not earlier ones are done, and return their waits. A
    wait counts from when the body was due: while the loop is held its task does not even begin."""
    began_s = now_s()
    waits: list[float] = []

    async def one(body: bytes, due_s: float) -> None:
        await ask(body)
        waits.append(now_s() - due_s)

    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            due_s = began_s + seconds_s * number / len(bodies)
            if (left_s := due_s - now_s()) > 0:
                await sleep(left_s)
            group.create_task(one(body, due_s))
    return waits
