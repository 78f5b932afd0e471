"""What a replica is asked for ids, and what its answers are worth. No socket."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.errors import Unrenderable
from tokenlane.gateway.tokenize_requests import answer, question
from tokenlane.protocols.bodies import Kind, OtherBody, Prompted
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.ids import unpack

HI = [{"role": "user", "content": "hi"}]


def read(kind: Kind, **body: Any) -> Prompted:
    made = inspect(kind, msgspec.json.encode(body))
    assert not isinstance(made, OtherBody)
    return made


def chat(**fields: Any) -> Prompted:
    return read(Kind.CHAT, **{"messages": HI, **fields})


def asked(request: Prompted, model: str = "m") -> dict[str, Any]:
    made: dict[str, Any] = json.loads(question(model, request, None))
    return made


def thought(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "yes", **fields}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (chat(), {"messages": HI}),
        (chat(temperature=0.5, max_tokens=3, user="u"), {"messages": HI}),
        (chat(tools=[TOOL], add_generation_prompt=False), {
            "messages": HI, "tools": [TOOL], "add_generation_prompt": False}),
        (chat(reasoning_effort="low", chat_template_kwargs={"a": 1}), {
            "messages": HI,
            "chat_template_kwargs": {"a": 1, "enable_thinking": True, "reasoning_effort": "low"}}),
        (chat(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}), {
            "messages": HI,
            "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "none"}}),
        (chat(documents=[{"text": "d"}]), {
            "messages": HI, "chat_template_kwargs": {"documents": [{"text": "d"}]}}),
        (chat(messages=[*HI, thought(reasoning_content="hm"), *HI]), {
            "messages": [*HI, thought(reasoning="hm"), *HI]}),
        (chat(messages=[thought(reasoning_content="old", reasoning="new")]), {
            "messages": [thought(reasoning="new")]}),
        (chat(messages=[thought(reasoning_content=None)]), {"messages": [thought()]}),
        (read(Kind.COMPLETION, prompt="a b"), {"prompt": "a b"}),
        (read(Kind.COMPLETION, prompt=["a b"], add_special_tokens=False), {
            "prompt": "a b", "add_special_tokens": False}),
        (read(Kind.RESPONSES, input="hi", instructions="Be brief."), {
            "messages": [{"role": "system", "content": "Be brief."}, *HI],
            "add_special_tokens": True}),
        (read(Kind.MESSAGES, messages=HI, system="Be brief."), {
            "messages": [{"role": "system", "content": "Be brief."}, *HI]}),
    ],
)  # fmt: skip
def test_what_is_asked(request_: Prompted, expected: dict[str, Any]) -> None:
    assert asked(request_) == {"model": "m", **expected}
    assert asked(request_, model="") == expected


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (chat(messages=[{"role": "user", "content": [IMAGE]}]), "multimodal"),
        (chat(messages="hi"), "message-shape"),
        (chat(messages=["hi"]), "message-shape"),
        (chat(messages=[{"role": "user", "content": 3}]), "message-shape"),
        (chat(tools=[]), "tool-shape"),
        (chat(chat_template="{{ x }}"), "request-template"),
        (chat(chat_template_kwargs=[]), "template-kwargs"),
        (chat(truncate_prompt_tokens=3), "truncation"),
        (chat(kv_transfer_params={"prompt_token_ids": [1]}), "forwarded-ids"),
        (chat(kv_transfer_params=msgspec.Raw(b'{"prompt\\u005ftoken_ids":[1]}')), "forwarded-ids"),
        (read(Kind.COMPLETION, prompt=["a", "b"]), "several-prompts"),
        (read(Kind.COMPLETION, prompt="a", truncate_prompt_tokens=3), "truncation"),
        (read(Kind.COMPLETION, prompt="a", suffix="b"), "suffix"),
        (read(Kind.RESPONSES, input="hi", previous_response_id="resp_1"), "stored-response"),
        (read(Kind.RESPONSES, input=[
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]),
         "tool-shape"),
        # Where a template puts a system message in the middle, only the template knows.
        (read(Kind.MESSAGES, messages=[*HI, {"role": "system", "content": "s"}]),
         "no-chat-template"),
        (read(Kind.MESSAGES, messages=HI, thinking={"type": "disabled"}), "no-chat-template"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(request_: Prompted, reason: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        question("m", request_, None)
    assert caught.value.reason == reason


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.booleans())
def test_an_answer_is_its_ids(ids: list[int], spaced: bool) -> None:
    body = {"count": len(ids), "max_model_len": 9, "tokens": ids, "token_strs": None}
    separators = (", ", ": ") if spaced else (",", ":")
    assert unpack(answer(json.dumps(body, separators=separators).encode())).tolist() == ids


def test_a_long_answer_is_packed_in_pieces() -> None:
    ids = [at * 7919 % 150_000 for at in range(60_000)]
    assert unpack(answer(json.dumps({"count": 60_000, "tokens": ids}).encode())).tolist() == ids


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[1]", b"\xff", b'{"count":1}', b'{"count":1,"tokens":[]}',
        b'{"count":2,"tokens":[1]}', b'{"count":1,"tokens":[-1]}', b'{"count":1,"tokens":["a"]}',
        b'{"count":1,"tokens":[1.5]}', b'{"count":1,"tokens":[4294967296]}',
        b'{"count":1,"tokens":{"a":1}}', b'{"count":1,"tokens":7}', b'{"count":1,"tokens":"7"}',
    ],
)  # fmt: skip
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(Unrenderable):
        answer(body)
