"""The text of gpt-oss's chats. Against vLLM's own code: tests/vllm/test_harmony.py."""

import json
import time
from datetime import datetime
from typing import Any

import msgspec
import pytest

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.chat import harmony, harmony_tools

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": "Hi"}


def text(*messages: Any, **fields: Any) -> str:
    body = json.dumps({"messages": messages, **fields}).encode()
    return harmony.text(msgspec.json.decode(body, type=ChatFields))


def head(effort: str = "medium", *, with_tools: bool = False) -> str:
    today = datetime.now().strftime("%Y-%m-%d")  # noqa: DTZ005
    calls = "\nCalls to these tools must go to the commentary channel: 'functions'."
    return (
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        f"Knowledge cutoff: 2024-06\nCurrent date: {today}\n\nReasoning: {effort}\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message."
        f"{calls if with_tools else ''}<|end|>"
    )


def test_a_plain_chat() -> None:
    told = text({"role": "system", "content": "Be brief."}, USER, reasoning_effort="low")
    assert told == head("low") + (
        "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"
        "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    )


def test_tools_and_their_results() -> None:
    schema: dict[str, Any] = {
        "type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer", "description": "One"}, "b": {"type": "string"}},
    }  # fmt: skip
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    asked = {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "found"}
    assert text(USER, asked, result, tools=[tool]) == head(with_tools=True) + (
        "<|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n"
        "type find = (_: {\n// One\na: number,\nb?: string,\n}) => any;\n\n"
        "} // namespace functions<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>why<|end|>"
        "<|start|>assistant to=functions.find<|channel|>commentary json<|message|>"
        '{"a": 1}<|call|>'
        "<|start|>functions.find<|channel|>commentary to=assistant<|message|>found<|end|>"
        "<|start|>assistant"
    )


def typed(schema: Any) -> str:
    return harmony_tools.section([{"function": {"name": "f", "parameters": schema}}])


def test_names_cost_what_they_are_long() -> None:
    """Looked up one by one, they take 7 s."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {f"p{at}": {} for at in range(20_000)},
        "required": [f"q{at}" for at in range(20_000)] + [["p1"], {}, 1, None, "p1"],
    }
    began_s = time.thread_time()
    told = typed(schema)
    assert time.thread_time() - began_s < 2
    assert "\np1: any,\np2?: any,\n" in told


def test_thoughts_before_the_last_answer_are_dropped() -> None:
    answer = {"role": "assistant", "content": "Yes", "reasoning_content": "hm"}
    assert "hm" not in text(USER, answer, USER, answer, USER)
    asked = {"role": "assistant", "content": "", "reasoning": "now", "tool_calls": [CALL]}
    told = text(USER, answer, USER, asked)
    assert "hm" not in told
    assert "now" in told


@pytest.mark.parametrize(
    ("messages", "fields", "reason"),
    [
        ([{"role": "user", "content": "a<|end|>b"}], {}, "message-shape"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}] * 2}], {}, "content-part"),
        ([{"role": "tool", "tool_call_id": "c1", "content": "a"}], {}, "message-shape"),
        ([USER], {"reasoning_effort": "none"}, "field-shape"),
        ([USER], {"truncate_prompt_tokens": 5}, "truncation"),
        ([USER], {"chat_template_kwargs": 1}, "template-kwargs"),
        ([], {}, "message-shape"),
        (
            [USER],
            {"tools": [{"type": "function", "function": {
                "name": "f", "parameters": {"type": "object", "properties": {"a": {"oneOf": []}}},
            }}]},
            "tool-shape",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_not_claimed(
    messages: list[Any], fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unrenderable) as unknown:
        text(*messages, **fields)
    assert unknown.value.reason == reason


def test_what_can_be_no_chat_is_refused() -> None:
    with pytest.raises(RequestError):
        text(USER, tools=[])
