"""Anthropic's messages and OpenAI's responses: ids equal vLLM's own renderings of them, and the
gateway serves both as vLLM does."""

import json
import random
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.vllm import prompts
from tests.vllm.conftest import Report
from tests.vllm.processes import Server
from tests.vllm.test_gateway import ask
from tests.vllm.versions import EARLIER, not_earlier, read_alike
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import MessagesFields, ResponsesFields
from tokenlane.tokens.tokenizer import Tokenizer

Replicas = tuple[Server, Server]
Body = dict[str, Any]
COUNT = 250
SCHEMA = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "now", "input_schema": {"type": "object"}},
    {"name": "get_weather", "description": "in <b>a</b> é", "input_schema": SCHEMA},
]
BILLING = "x-anthropic-billing-header: 1"


def _texts(rng: random.Random) -> Any:
    if rng.random() < 0.5:
        return prompts.text(rng)
    return [{"type": "text", "text": prompts.text(rng)} for _ in range(rng.randint(0, 3))]


def _message(rng: random.Random) -> Iterator[Body]:
    """One message, or a use of a tool and its result."""
    kind = rng.randrange(6)
    if kind == 0:
        yield {"role": "system", "content": rng.choice((BILLING, _texts(rng)))}
    elif kind == 1:
        use = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"a": [1.5, "é"]}}
        thought = {"type": "thinking", "thinking": prompts.text(rng), "signature": "s"}
        said = {"type": "text", "text": prompts.text(rng)}
        blocks = [one for one in (thought, said, use) if rng.random() < 0.7]
        yield {"role": "assistant", "content": blocks}
        given = rng.choice((prompts.text(rng), _texts(rng), None))
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": given}
        yield {"role": "user", "content": [result, said] if rng.random() < 0.5 else [result]}
    else:
        yield {"role": rng.choice(("user", "assistant")), "content": _texts(rng)}


def messages() -> Iterator[Body]:
    """Requests in Anthropic's dialect."""
    rng = random.Random(5)
    for _ in range(COUNT):
        turns = [one for _ in range(rng.randint(1, 4)) for one in _message(rng)]
        body: Body = {"messages": turns, "max_tokens": 2000}
        if rng.random() < 0.5:
            body["system"] = rng.choice(
                (
                    _texts(rng),
                    BILLING + "\nmore",
                    [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}],
                )
            )
        if rng.random() < 0.3:
            body["tools"] = TOOLS[: rng.randint(0, 2)]
        if rng.random() < 0.3:
            body["thinking"] = rng.choice(
                (
                    {"type": "disabled"},
                    {"type": "adaptive"},
                    {"type": "enabled", "budget_tokens": 1024},
                )
            )
        if rng.random() < 0.3:
            body["output_config"] = rng.choice(({"effort": "low"}, {"effort": None}, {}))
        if rng.random() < 0.2:
            body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
        yield body


def _items(rng: random.Random) -> Iterator[Body]:
    """One item of a response's input, or some of one turn."""
    kind = rng.randrange(6)
    text = prompts.text(rng)
    if kind == 0:
        yield {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text}],
        }
    elif kind == 1:
        if rng.random() < 0.5:
            yield {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": text}],
            }
        yield {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'}
        yield {"type": "function_call_output", "call_id": "c1", "output": text}
    elif kind == 2:
        yield {"role": rng.choice(("system", "developer")), "content": text}
    elif kind == 3:
        yield {"role": "assistant", "content": text}
    else:
        parts = [
            {"type": "input_text", "text": prompts.text(rng)} for _ in range(rng.randint(1, 2))
        ]
        item: Body = {"role": "user", "content": rng.choice((text, parts))}
        item |= {"name": "anna", "task": "t"} if rng.random() < 0.3 else {}
        yield item | ({"type": "message"} if rng.random() < 0.5 else {})


def responses() -> Iterator[Body]:
    """Requests in the dialect of OpenAI's responses."""
    rng = random.Random(6)
    for _ in range(COUNT):
        items = [one for _ in range(rng.randint(1, 4)) for one in _items(rng)]
        body: Body = {"input": rng.choice((items, items, prompts.text(rng)))}
        if rng.random() < 0.5:
            body["instructions"] = rng.choice((prompts.text(rng), "Be brief."))
        if rng.random() < 0.3:
            tools = [
                {"type": "function", "name": tool["name"], "parameters": tool["input_schema"]}
                for tool in TOOLS
            ]
            body["tools"] = tools[: rng.randint(0, 2)]
        if rng.random() < 0.3:
            body["reasoning"] = {"effort": rng.choice(("none", "low", "high"))}
        yield body


CASES = {
    "/v1/messages": (messages, MessagesFields),
    "/v1/responses": (responses, ResponsesFields),
}


@pytest.mark.parametrize("path", CASES)
def test_ids_equal_vllms_renderings(
    replicas: Replicas, tokenizer: Tokenizer, report: Report, path: str
) -> None:
    make, kind = CASES[path]
    wrong, equal, unknown, refused = [], 0, 0, 0
    for number, body in enumerate(read_alike(make())):
        status, answer = replicas[number % 2].post(path + "/render", body | {"model": "tiny"})
        try:
            mine = tokenizer.chat_ids(msgspec.json.decode(msgspec.json.encode(body), type=kind))
        except Unrenderable:
            unknown += 1
            continue
        except RequestError:
            refused += 1
            wrong += [(body, answer)] if status == 200 else []
            continue
        if status != 200:
            refused += 1
        elif array("I", mine).tolist() != answer["token_ids"]:
            wrong.append((body, answer))
        else:
            equal += 1
    assert not wrong, wrong[:3]
    if EARLIER and not equal:
        pytest.skip("this vLLM renders nothing of the dialect")
    report.add(
        f"{path}: ids equal / left to vLLM / refused by it", f"{equal} / {unknown} / {refused}"
    )
    assert equal >= 0.8 * COUNT


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("stream", [False, True])
def test_served(gateway: Server, report: Report, path: str, stream: bool) -> None:
    """Routed by its tokens, and counted as vLLM counts."""
    seen = 0
    for turn in range(3):
        content = f"A conversation of {path}, {stream}. " + "Some rules. " * 100
        body: Body = {"stream": stream}
        if path == "/v1/messages":
            body |= {"max_tokens": 5, "messages": [{"role": "user", "content": content}]}
        else:
            body |= {"max_output_tokens": 5, "input": content}
        status, headers, answer = ask(gateway, path, body)
        assert status == 200, answer
        assert headers["x-tokenlane-route"].startswith("affinity")
        seen = int(headers["x-tokenlane-cached-tokens"])
        assert (seen > 0) == (turn > 0)
        if path == "/v1/messages":
            assert headers["request-id"] == headers["x-request-id"]
        if stream:
            last = (
                b"event: message_stop" if path == "/v1/messages" else b"event: response.completed"
            )
            assert last in answer
        else:
            usage = json.loads(answer)["usage"]
            details = usage.get("input_tokens_details", usage)
            cached = details.get("cached_tokens", details.get("cache_read_input_tokens"))
            assert abs(cached - seen) <= 32
    report.add(f"{path}, stream={stream}: prefix found", seen)
    metrics = gateway.request("GET", "/health")
    assert metrics[0] == 200


def _is_counted_otherwise(body: Body) -> bool:
    """Whether earlier versions count another prompt: they leave the effort out, and without
    `--chat-template` all system messages are one, the first."""
    return "output_config" in body or any(one["role"] == "system" for one in body["messages"])


def test_tokens_are_counted_as_vllm_counts(gateway: Server, replicas: Replicas) -> None:
    for number, body in enumerate(read_alike(messages())):
        if number % 10 == 0 and not (EARLIER and _is_counted_otherwise(body)):
            asked = {k: v for k, v in body.items() if k not in ("max_tokens", "thinking")}
            path = "/v1/messages/count_tokens"
            status, told = replicas[0].post(path, asked | {"model": "tiny"})
            mine, _, answer = ask(gateway, path, asked)
            assert mine == status
            assert status != 200 or json.loads(answer) == told, asked


@not_earlier
def test_errors_are_in_anthropics_shape(gateway: Server) -> None:
    status, headers, answer = ask(gateway, "/v1/messages", {"messages": 5})
    assert status == 400
    assert headers["request-id"]
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40_000}
    status, _, answer = ask(gateway, "/v1/messages", body)
    assert (status, json.loads(answer)["type"]) == (400, "error")
