"""Ids equal vLLM's own: its /tokenize, and the prompt it says it answered."""

import time
from array import array
from typing import Any

import msgspec
import pytest

from tests.tokens.encode import adversarial
from tests.vllm import prompts
from tests.vllm.conftest import IDS, Report
from tests.vllm.processes import Server
from tests.vllm.versions import of_these, read_alike
from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import ChatFields, CompletionFields
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

Replicas = tuple[Server, Server]

# What /tokenize has no field for; these requests are compared on the generating endpoint alone.
BEYOND_TOKENIZE = {
    "documents", "reasoning_effort", "truncate_prompt_tokens", "truncation_side", "tool_choice",
}  # fmt: skip


def _ids(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


def _chat(body: dict[str, Any]) -> ChatFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatFields)


def _completion(body: dict[str, Any]) -> CompletionFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=CompletionFields)


def test_completion_ids_equal_tokenize(
    replicas: Replicas, tokenizer: Tokenizer, report: Report
) -> None:
    started_s = time.monotonic()
    wrong, count = [], 0
    for body in prompts.completions():
        status, answer = replicas[count % 2].post("/tokenize", body)
        assert status == 200, answer
        (mine,) = tokenizer.completion_ids(_completion(body))
        wrong += [body] if _ids(mine) != answer["tokens"] else []
        count += 1
    assert not wrong
    report.add("completion prompts equal to /tokenize", f"{count}")
    report.add("their duration", f"{time.monotonic() - started_s:.1f} s")
    assert count >= 150


def test_chat_ids_equal_tokenize(replicas: Replicas, tokenizer: Tokenizer, report: Report) -> None:
    wrong, count = [], 0
    for body in read_alike(prompts.chats()):
        told = {name: value for name, value in body.items() if name not in BEYOND_TOKENIZE}
        # /tokenize knows the new spelling only; the generating endpoint takes both.
        messages = [
            {("reasoning" if key == "reasoning_content" else key): value
             for key, value in message.items()}
            for message in told["messages"]
        ]  # fmt: skip
        told["messages"] = messages
        status, answer = replicas[count % 2].post("/tokenize", told)
        assert status == 200, (told, answer)
        wrong += [told] if _ids(tokenizer.chat_ids(_chat(told))) != answer["tokens"] else []
        count += 1
    assert not wrong
    report.add("chat prompts equal to /tokenize", f"{count}")
    assert count >= of_these(350)


@pytest.mark.row("P4")
def test_adversarial_ids_equal_tokenize(
    replicas: Replicas, tokenizer: Tokenizer, report: Report
) -> None:
    """The corpus that tests/gateway/test_unicode.py sends to a simulated replica."""
    wrong, corpus = [], adversarial.texts(demo_folder())
    for at, text in enumerate(corpus):
        prompt: dict[str, Any] = {"prompt": text}
        status, answer = replicas[at % 2].post("/tokenize", prompt)
        assert status == 200, (prompt, answer)
        (mine,) = tokenizer.completion_ids(_completion(prompt))
        wrong += [prompt] if _ids(mine) != answer["tokens"] else []
        chat = {"messages": [{"role": "user", "content": text}]}
        status, answer = replicas[at % 2].post("/tokenize", chat)
        assert status == 200, (chat, answer)
        wrong += [chat] if _ids(tokenizer.chat_ids(_chat(chat))) != answer["tokens"] else []
    assert not wrong
    report.add("adversarial Unicode equal to /tokenize", f"{2 * len(corpus)}")


def test_chat_ids_equal_what_was_answered(
    replicas: Replicas, tokenizer: Tokenizer, report: Report
) -> None:
    wrong, count = [], 0
    for body in read_alike(prompts.chats()):
        asked = body | {"model": "tiny", "max_tokens": 1, "return_token_ids": True}
        status, answer = replicas[count % 2].post("/v1/chat/completions", asked)
        assert status == 200, (body, answer)
        mine = _ids(tokenizer.chat_ids(_chat(body)))
        if mine != answer["prompt_token_ids"] or len(mine) != answer["usage"]["prompt_tokens"]:
            wrong.append(body)
        count += 1
    assert not wrong
    report.prove(IDS, "demo template", count)


@pytest.mark.parametrize(
    "extra", [{}, {"truncate_prompt_tokens": 7}, {"add_special_tokens": False}]
)
def test_completion_ids_equal_what_was_answered(
    replicas: Replicas, tokenizer: Tokenizer, report: Report, extra: dict[str, Any]
) -> None:
    texts = [one for one in prompts.TEXTS if one]
    cases: list[Any] = [*texts, texts[:5], [5, 6, 7], [[1, 2], [3]]]
    for prompt in cases:
        body = {"prompt": prompt, **extra}
        asked = body | {"model": "tiny", "max_tokens": 1, "return_token_ids": True}
        status, answer = replicas[0].post("/v1/completions", asked)
        assert status == 200, (body, answer)
        mine = [_ids(one) for one in tokenizer.completion_ids(_completion(body))]
        assert mine == [choice["prompt_token_ids"] for choice in answer["choices"]], body
        assert sum(map(len, mine)) == answer["usage"]["prompt_tokens"]
    report.prove(IDS, f"completions, {extra or 'plain'}", len(cases))


@pytest.mark.parametrize("body", prompts.REFUSED)
def test_what_is_refused_here_vllm_refuses_too(
    replicas: Replicas, tokenizer: Tokenizer, body: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        tokenizer.chat_ids(_chat(body))
    status, _ = replicas[0].post("/v1/chat/completions", body | {"model": "tiny"})
    assert status == refused.value.status == 400


def test_decode_equals_detokenize(replicas: Replicas, tokenizer: Tokenizer) -> None:
    for text in prompts.TEXTS[1:]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        status, answer = replicas[1].post("/detokenize", {"tokens": _ids(ids)})
        assert status == 200
        assert tokenizer.decode(ids) == answer["prompt"]
