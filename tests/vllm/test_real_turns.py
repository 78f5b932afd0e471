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

TALKS = 4
HOWS = ["said", "part", "answer", "answer", "null", "two"]
SAID = [*TEXTS, "x\n", " y", "</think>q", "<tool_response>z</tool_response>", *["words"] * 4]


def service(tokenizer: Tokenizer, cache_bytes: int) -> TokenService:
    made = TokenSettings(cache_limit_bytes=cache_bytes, threads=1, stall_budget_s=1e-9)
    return TokenService(made, ModelTokenizers({"m": tokenizer}), 16)


@pytest.mark.timeout(300)
async def test_turns_by_real_templates(tmp_path: Path) -> None:
    if not corpus.templates():
        pytest.skip("the package of templates cannot be had")
    rng, hits = random.Random(1), 0
    for name, template in corpus.templates().items():
        try:
            tokenizer = Tokenizer.load("m", folder_with(tmp_path / name, chat_template=template))
        except ConfigError:
            continue
        warm, cold = service(tokenizer, 64 << 20), service(tokenizer, 0)
        fields: dict[str, Any] = {"tools": TOOLS} if rng.random() < 0.5 else {}
        write, hows = written(0, fields), rng.choices(HOWS, k=3)
        for number in range(TALKS):
            # A shape is known from its second conversation on.
            steps: list[Step] = [
                (how, rng.choice(SAID), rng.choice(SAID), rng.choice(ARGUMENTS))
                if number > 1
                else (how, f"say {number}", f"so {number}", ARGUMENTS[0])
                for how in hows
            ]
            for messages in talk(steps):
                raw = write(messages)
                told = await read(warm, raw, (len(raw) // 2,))
                assert told == await read(cold, raw), (name, messages)
        hits += warm.bodies.hits
        warm.close()
        cold.close()
    # What takes longer than a hop is made in a thread, from the whole body.
    assert hits > 20
