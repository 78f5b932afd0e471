"""What the gateway answers itself, in vLLM's shapes."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_tokenizer
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.fleet_state import FleetState, ReplicaState
from tokenlane.gateway import tokenize_answers


def tokenize(value: dict[str, Any], context: int | None = None) -> Any:
    request = tokenize_answers.tokenize_request(json.dumps(value).encode())
    return json.loads(tokenize_answers.tokenize(demo_tokenizer(), request, context))


def test_models_are_merged() -> None:
    states = [
        ReplicaState(id="0", slot=0, url="", models=("a", "b"), max_model_tokens=10),
        ReplicaState(id="1", slot=1, url="", models=("b",), max_model_tokens=7),
        ReplicaState(id="2", slot=2, url="", models=("c", "a")),
    ]
    listed = json.loads(tokenize_answers.models(FleetState(1, tuple(states)), 123))
    assert listed["object"] == "list"
    assert [(card["id"], card["max_model_len"]) for card in listed["data"]] == [
        ("a", 10),
        ("b", 7),
        ("c", None),
    ]
    assert {card["created"] for card in listed["data"]} == {123}
    assert json.loads(tokenize_answers.models(FleetState(0, ()), 1)) == {
        "object": "list",
        "data": [],
    }


def test_tokenize_text() -> None:
    said = tokenize({"prompt": "hello world"}, 99)
    assert set(said) == {"count", "max_model_len", "tokens", "token_strs"}
    assert said["count"] == len(said["tokens"]) > 0
    assert (said["max_model_len"], said["token_strs"]) == (99, None)
    strings = tokenize({"prompt": "hello world", "return_token_strs": True})["token_strs"]
    assert len(strings) == said["count"]


def test_tokenize_a_chat() -> None:
    messages = [{"role": "user", "content": "hello world"}]
    said = tokenize({"messages": messages, "model": "demo"})
    assert said["count"] > tokenize({"prompt": "hello world"})["count"]
    longer = tokenize({"messages": messages, "add_generation_prompt": False})
    assert longer["count"] < said["count"]
    assert tokenize({"messages": None, "prompt": "hello"}) == tokenize({"prompt": "hello"})


@given(st.text(max_size=30))
def test_there_and_back(text: str) -> None:
    tokens = tokenize({"prompt": text, "add_special_tokens": False})["tokens"]
    request = tokenize_answers.detokenize_request(json.dumps({"tokens": tokens}).encode())
    # The demo tokenizer normalizes (NFC), so that is what comes back.
    composed = unicodedata.normalize("NFC", text)
    assert json.loads(tokenize_answers.detokenize(demo_tokenizer(), request)) == {
        "prompt": composed
    }


NO_REQUESTS = [
    b"",
    b"[]",
    b"{",
    b'{"messages":',
    b'{"prompt":"\xff","model":"\xff"}',
    b'{"model":5}',
    b'{"messages":[],"return_token_strs":"perhaps"}',
    b'{"messages":' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_no_tokenize_request(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        tokenize_answers.tokenize_request(body)
    assert (refused.value.status, refused.value.code) == (400, "invalid_body")


HI = [{"role": "user", "content": "hi"}]
THOUGHT = [*HI, {"role": "assistant", "content": "a", "reasoning_content": "because"}, *HI]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        # What vLLM refuses here.
        {"prompt": ["a", "b"]},
        {"prompt": ["a"]},
        {"prompt": [1, 2]},
        # What it ignores here, unlike in a request for an answer.
        {"prompt": "a b c", "truncate_prompt_tokens": 2},
        {"messages": HI, "truncate_prompt_tokens": 2},
        {"messages": HI, "reasoning_effort": "low"},
        {"messages": HI, "documents": [{"text": "d"}]},
        {"messages": HI, "tools": []},
        {"messages": THOUGHT},
    ],
)
def test_what_only_a_replica_knows(asked: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable):
        tokenize(asked)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"tokens":"x"}', b'{"tokens":[1.5]}', b'{"tokens":[null]}', b"\xff"]
)
def test_no_detokenize_request(body: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        tokenize_answers.detokenize_request(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("tokens", [[-1], [2**32], [2**63], [10**30]])
def test_ids_out_of_range(tokens: list[int]) -> None:
    with pytest.raises(RequestError) as refused:
        tokenize_answers.detokenize(
            demo_tokenizer(),
            tokenize_answers.detokenize_request(json.dumps({"tokens": tokens}).encode()),
        )
    assert refused.value.status == 400


def test_unknown_ids_vanish() -> None:
    request = tokenize_answers.detokenize_request(b'{"tokens":[4000000000]}')
    assert json.loads(tokenize_answers.detokenize(demo_tokenizer(), request)) == {"prompt": ""}
