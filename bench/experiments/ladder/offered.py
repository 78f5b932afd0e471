"""The ladder under offered load: which rungs took the prompts, and who waited."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
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
        waits: list[float] = []
        with beating() as beats:
            await asyncio.gather(
                _arrivals(service, long, seconds_s, rungs, None),
                _arrivals(service, short, seconds_s, None, waits),
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


async def _arrivals(
    service: TokenService,
    bodies: list[bytes],
    seconds_s: float,
    rungs: Counter[str] | None,
    waits: list[float] | None,
) -> None:
    """Bodies at even times, whether or not earlier ones are done."""
    began_s = time.monotonic()

    async def one(body: bytes) -> None:
        asked_s = time.monotonic()
        outcome = await ids_of(service, body)
        if rungs is not None:
            rungs[outcome.rung.value] += 1
        if waits is not None:
            waits.append(time.monotonic() - asked_s)

    async with asyncio.TaskGroup() as group:
        for number, body in enumerate(bodies):
            due_s = began_s + seconds_s * number / len(bodies)
            if (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            group.create_task(one(body))
