"""Forwarded ids: in the place of the text, where that is proven, and nothing else changed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raw import Upstream, answering, json_bytes, ok, post
from tests.support import demo_tokenizer, gateway
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.gateway import body_edits
from tokenlane.protocols.bodies import ChatBody, CompletionBody, Kind, inspect
from tokenlane.tokens.ids import pack


def rewritten(asked: dict[str, Any], *sequences: list[int]) -> Any:
    raw = json.dumps(asked).encode()
    body = inspect(Kind.CHAT if "messages" in asked else Kind.COMPLETION, raw)
    assert isinstance(body, ChatBody | CompletionBody)
    made = body_edits.with_ids(raw, body, [pack(ids) for ids in sequences])
    return None if made is None else json.loads(made)


OTHERS = st.dictionaries(
    st.sampled_from(["model", "temperature", "stop", "x-vendor", "logit_bias"]),
    st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one, max_size=3)),
).map(lambda fields: {**fields, "model": "demo"})


@pytest.mark.row("P3")
@given(OTHERS, st.lists(st.integers(0, 2**32 - 1), max_size=5000))
def test_a_prompt_becomes_its_ids_and_the_rest_stays(others: Any, ids: list[int]) -> None:
    assert rewritten({"prompt": "hi", **others}, ids) == {"prompt": ids, **others}


def test_several_prompts() -> None:
    assert rewritten({"prompt": ["a", "b"]}, [1], [2, 3])["prompt"] == [[1], [2, 3]]
    assert rewritten({"prompt": ["a"]}, [1])["prompt"] == [[1]]


def test_a_chat_carries_its_ids_beside_its_messages() -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
    assert rewritten(asked, [1, 2]) == {**asked, "kv_transfer_params": {"prompt_token_ids": [1, 2]}}


@pytest.mark.row("P3")
@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": [1, 2]},
        {"prompt": "a", "echo": True},
        {"prompt": "a", "truncate_prompt_tokens": 3},
        {"prompt": "a", "add_special_tokens": False},
        {"messages": [], "tools": []},
        {"messages": [], "kv_transfer_params": {"do_remote_decode": True}},
        {"messages": [], "continue_final_message": True},
    ],
)
def test_what_is_not_proven_goes_on_as_it_came(asked: dict[str, Any]) -> None:
    assert rewritten(asked, [1]) is None


COMPLETION = {"model": "demo", "prompt": "hello there"}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("mode", "path", "asked", "carries"),
    [
        ("off", "/v1/completions", COMPLETION, False),
        ("completions", "/v1/completions", COMPLETION, True),
        ("completions", "/v1/chat/completions", CHAT, False),
        ("all", "/v1/chat/completions", CHAT, True),
        ("all", "/v1/completions", {**COMPLETION, "prompt": "word " * 3000}, True),
    ],
)
async def test_what_a_replica_sees(
    mode: Any, path: str, asked: dict[str, Any], carries: bool
) -> None:
    settings = Settings(tokens=TokenSettings(forward_tokens=mode))
    async with (
        Upstream(answering(ok())) as replica,
        gateway(replica.url, settings=settings, tokenizer=demo_tokenizer()) as bench,
    ):
        assert (await bench.ask(post(path, json_bytes(asked)))).status == 200
        seen = json.loads(replica.asked[0].body)
    tokenizer = demo_tokenizer()
    if not carries:
        assert seen == asked
    elif "prompt" in asked:
        ids = tokenizer.encode(asked["prompt"], add_special_tokens=True)
        assert pack(seen["prompt"]) == ids
    else:
        assert tokenizer.decode(pack(seen["kv_transfer_params"]["prompt_token_ids"])).count("hello")


async def test_a_replica_that_counts_otherwise_gets_text_again() -> None:
    usage = {"usage": {"prompt_tokens": 999, "completion_tokens": 1, "total_tokens": 1000}}
    settings = Settings(tokens=TokenSettings(forward_tokens="all"))
    async with (
        Upstream(answering(ok(json_bytes(usage)), ok())) as replica,
        gateway(replica.url, settings=settings, tokenizer=demo_tokenizer()) as bench,
    ):
        for _ in range(2):
            await bench.ask(post("/v1/chat/completions", json_bytes(CHAT)))
        first, second = (json.loads(one.body) for one in replica.asked)
    assert "kv_transfer_params" in first
    assert second == CHAT
