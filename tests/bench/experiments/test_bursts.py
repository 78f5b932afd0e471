"""Bursts compare places to encode, not encoders."""

from bench.experiments import bursts
from bench.loads.prompts import conversation, raw
from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Rung
from tokenlane.protocols.bodies import Kind, OtherBody
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer


def test_the_twin_has_a_gateway_with_its_encoder_beside_it() -> None:
    ours, twin = bursts.RUNS[bursts.SAME_ENCODER], bursts.RUNS[bursts.TWIN]
    assert ours["fast_engines"] is twin["fast_engines"] is False
    differ = {name for name in ours | twin if ours.get(name) != twin.get(name)}
    assert differ == {"thread_hop_s", "stall_budget_s"}
    assert bursts.RUNS[bursts.AS_SHIPPED] == {}


async def test_the_twin_encodes_every_prompt_on_its_loop() -> None:
    tokenizer = Tokenizer.load("m", demo_folder(), fast=False)
    settings = TokenSettings(**bursts.RUNS[bursts.TWIN])
    service = TokenService(settings, ModelTokenizers({"m": tokenizer}), 16)
    rungs = []
    for seed in range(2):
        body = inspect(Kind.CHAT, raw(conversation(20_000, 1, seed)))
        assert not isinstance(body, OtherBody)
        rungs.append((await service.prompt("m", body)).rung)
    service.close()
    assert rungs == [Rung.SHORT] * 2
