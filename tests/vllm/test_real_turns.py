"""Turns of conversations by real chat templates: the ids of a body that was known are those of one
that was not. Needs no server."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tokens import test_dialect_turns as dialect_turns
from tests.tokens.models import folder_with
from tests.tokens.test_agent_turns import ARGUMENTS, Step, talk
from tests.tokens.test_next_turn import TEXTS, TOOLS, read, system, written
from tests.vllm import corpus
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import ConfigError
from tokenlane.protocols.bodies import Kind
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

TALKS, STEPS = 4, 5
HOWS = ["said", "part", "answer", "answer", "null", "two"]
SAID = [*TEXTS, "x\n", " y", "</think>q", "<tool_response>z</tool_response>", *["words"] * 4]


def service(tokenizer: Tokenizer, cache_bytes: int, **times: float) -> TokenService:
    made = TokenSettings(cache_limit_bytes=cache_bytes, threads=1, **times)  # type: ignore[arg-type]  # of floats alone
    return TokenService(made, ModelTokenizers({"m": tokenizer}), 16)


def tokenizers(folder: Path) -> Iterator[tuple[str, Tokenizer]]:
    """By the names of their templates."""
    if not corpus.templates():
        pytest.skip("the package of templates cannot be had")
    for name, template in corpus.templates().items():
        try:
            yield name, Tokenizer.load("m", folder_with(folder / name, chat_template=template))
        except ConfigError:
            continue


async def known_turns(
    rng: random.Random, tokenizer: Tokenizer, kind: Kind, write: Callable[[list[Any]], bytes]
) -> int:
    """Compare what services with and without caches make of conversations, and return how many
    bodies were known by their beginning."""
    warm, cold = service(tokenizer, 64 << 20, stall_budget_s=1e-9), service(tokenizer, 0)
    for number in range(TALKS):
        steps: list[Step] = [
            (how, rng.choice(SAID), rng.choice(SAID), rng.choice(ARGUMENTS))
            if number > 1
            else (how, f"say {number}", f"so {number}", ARGUMENTS[0])
            for how in rng.choices(HOWS, k=STEPS)
        ]
        for messages in talk(steps):
            raw = write(messages)
            told = await read(warm, raw, (len(raw) // 2,), kind=kind)
            assert told == await read(cold, raw, kind=kind), (kind, messages)
    warm.close()
    cold.close()
    return warm.bodies.hits


@pytest.mark.timeout(300)
async def test_turns_by_real_templates(tmp_path: Path) -> None:
    rng, hits = random.Random(1), []
    for _, tokenizer in tokenizers(tmp_path):
        fields: dict[str, Any] = {"tools": TOOLS} if rng.random() < 0.5 else {}
        hits.append(await known_turns(rng, tokenizer, Kind.CHAT, written(0, fields)))
    assert sum(hits) > TALKS * STEPS * len(hits) // 3


@pytest.mark.timeout(300)
async def test_turns_of_other_dialects_by_real_templates(tmp_path: Path) -> None:
    rng, hits = random.Random(3), []
    for _, tokenizer in tokenizers(tmp_path):
        kind, style = rng.choice(sorted(dialect_turns.DIALECTS)), rng.randrange(4)
        write = partial(dialect_turns.written, kind, style=style, caching=True)
        hits.append(await known_turns(rng, tokenizer, kind, write))
    assert sum(hits) > TALKS * STEPS * len(hits) // 5


@pytest.mark.timeout(300)
async def test_openings_by_real_templates(tmp_path: Path) -> None:
    """Of short bodies what they begin with is known."""
    rng, hits, asked = random.Random(2), 0, 0
    for name, tokenizer in tokenizers(tmp_path):
        warm = service(tokenizer, 64 << 20, stall_budget_s=10.0, thread_hop_s=10.0)
        cold = service(tokenizer, 0)
        write = written(rng.choice((0, 2)), {"tools": TOOLS} if rng.random() < 0.5 else {})
        questions = [f"ask {number}" for number in range(4)] + [rng.choice(SAID) for _ in range(12)]
        for question in questions:
            raw = write([system(), {"role": "user", "content": question}])
            assert await read(warm, raw) == await read(cold, raw), (name, question)
        hits += warm.bodies.hits
        asked += len(questions)
        warm.close()
        cold.close()
    assert hits > asked // 6
