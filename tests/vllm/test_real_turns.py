"""Turns of conversations by real chat templates: the ids of a body that was known are those of one
that was not. Needs no server."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.models import folder_with
from tests.tokens.test_agent_turns import ARGUMENTS, Step, talk
from tests.tokens.test_next_turn import TEXTS, TOOLS, read, written
from tests.vllm import corpus
from tokenlane.config.settings import TokenSettings
from tokenlane.errors import ConfigError
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

TALKS, STEPS = 4, 5
HOWS = ["said", "part", "answer", "answer", "null", "two"]
SAID = [*TEXTS, "x\n", " y", "</think>q", "<tool_response>z</tool_response>", *["words"] * 4]


def service(tokenizer: Tokenizer, cache_bytes: int) -> TokenService:
    made = TokenSettings(cache_limit_bytes=cache_bytes, threads=1, stall_budget_s=1e-9)
    return TokenService(made, ModelTokenizers({"m": tokenizer}), 16)


@pytest.mark.timeout(300)
async def test_turns_by_real_templates(tmp_path: Path) -> None:
    if not corpus.templates():
        pytest.skip("the package of templates cannot be had")
    rng, hits, turns = random.Random(1), 0, 0
    for name, template in corpus.templates().items():
        try:
            tokenizer = Tokenizer.load("m", folder_with(tmp_path / name, chat_template=template))
        except ConfigError:
            continue
        warm, cold = service(tokenizer, 64 << 20), service(tokenizer, 0)
        fields: dict[str, Any] = {"tools": TOOLS} if rng.random() < 0.5 else {}
        write = written(0, fields)
        for number in range(TALKS):
            steps: list[Step] = [
                (how, rng.choice(SAID), rng.choice(SAID), rng.choice(ARGUMENTS))
                if number > 1
                else (how, f"say {number}", f"so {number}", ARGUMENTS[0])
                for how in rng.choices(HOWS, k=STEPS)
            ]
            for messages in talk(steps):
                raw = write(messages)
                told = await read(warm, raw, (len(raw) // 2,))
                assert told == await read(cold, raw), (name, messages)
        hits += warm.bodies.hits
        turns += TALKS * STEPS
        warm.close()
        cold.close()
    assert hits > turns // 3
