"""Text that tokenizers dislike, new in each request, at the rate of the pool: bounded memory."""

import asyncio
from collections.abc import Callable

import psutil
import pytest

from bench.loads.prompts import HOSTILE, hostile, ids_of, raw
from tests.support import demo_tokenizer
from tokenlane.config.settings import TokenSettings
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService

LIMIT_BYTES = 4_000_000
SETTINGS = TokenSettings(threads=2, cache_limit_bytes=LIMIT_BYTES)


@pytest.mark.slow
@pytest.mark.long
async def test_hostile_text_leaves_memory_bounded(
    long: bool, figure: Callable[[str], None]
) -> None:
    """Of what the gateway keeps and of what engines remember of words: no text has one of an
    earlier text."""
    size, rounds = (1_000_000, 60) if long else (50_000, 6)
    process = psutil.Process()
    service = TokenService(SETTINGS, ModelTokenizers({"m": demo_tokenizer()}), 16)
    peaks: list[int] = []
    held: dict[str, int] = {}
    try:
        for number in range(rounds):
            # Twice as many as threads: some are made, some wait.
            bodies = [
                raw([{"role": "user", "content": hostile(kind, number, size)}]) for kind in HOSTILE
            ]
            for outcome in await asyncio.gather(*(ids_of(service, body) for body in bodies)):
                assert outcome.prompt is not None or outcome.reason
            peaks.append(process.memory_info().rss)
            held = {cache: counts.size_bytes for cache, counts in service.budgets.counts().items()}
            assert sum(held.values()) <= LIMIT_BYTES
        assert sum(held.values()) > 0
    finally:
        service.close()
    third = rounds // 3
    grown = max(peaks[-third:]) - max(peaks[:third])
    # Without a bound, what is kept of each prompt is at least its ids and its text.
    assert grown < 0.5 * third * len(HOSTILE) * 2 * size + 16_000_000
    figure(
        f"{rounds * len(HOSTILE)} prompts of {size:,} hostile characters, no two alike: "
        f"{grown / 1e6:+.0f} MB from the first third to the last"
    )
