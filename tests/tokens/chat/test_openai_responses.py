"""OpenAI's responses as chats: what vLLM makes of each shape, and what is left to it.

`tests/vllm/test_dialects.py` holds the same against real vLLM.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import demo_tokenizer
from tests.tokens.chat.test_anthropic_messages import fields
from tests.tokens.models import folder_with
from tokenlane.errors import Unrenderable
from tokenlane.protocols.bodies import ChatFields, ResponsesFields
from tokenlane.tokens.chat import openai_responses
from tokenlane.tokens.tokenizer import Tokenizer


def read(body: dict[str, Any]) -> ResponsesFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=ResponsesFields)


def chat(**body: Any) -> dict[str, Any]:
    """What it becomes, decoded."""
    request = read({"input": "hi", **body})
    messages, _ = openai_responses.messages_of(request)
    return {"messages": messages, **fields(openai_responses.fields_of(request))}


USER = {"role": "user", "content": "hi"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": "4"}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
MADE_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHATS: list[tuple[Any, list[Any]]] = [
    ("hi", [USER]),
    ([USER], [USER]),
    ([{"type": "message", **USER}], [USER]),
    (
        [{"role": "developer", "content": [{"type": "input_text", "text": "a"}]}],
        [{"role": "developer", "content": [{"type": "text", "text": "a"}]}],
    ),
    ([USER, SAID], [USER, {"role": "assistant", "content": "so"}]),
    (
        [THOUGHT, SAID, CALL, CALL, ANSWER],
        [
            {
                "role": "assistant",
                "reasoning": "hm",
                "content": "so",
                "tool_calls": [MADE_CALL, MADE_CALL],
            },
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        ],
    ),
    (
        [SAID, SAID, THOUGHT | {"content": None, "summary": []}],
        [
            {"role": "assistant", "content": "so"},
            {"role": "assistant", "content": "so", "reasoning": ""},
        ],
    ),
    ([CALL], [{"role": "assistant", "tool_calls": [MADE_CALL]}]),
    ([USER | {"name": "a", "task": "t"}], [USER | {"name": "a", "task": "t"}]),
    ([USER | {"name": 5, "task": None, "tools": [{}]}], [USER]),
    ([SAID | {"name": "a"}], [{"role": "assistant", "content": "so"}]),
]


@pytest.mark.parametrize(("given", "made"), CHATS, ids=str)
def test_input(given: Any, made: list[Any]) -> None:
    assert chat(input=given)["messages"] == made


def test_instructions_and_effort() -> None:
    made = chat(instructions="s", reasoning={"effort": "low", "summary": "auto"})
    assert made["messages"] == [{"role": "system", "content": "s"}, USER]
    assert made["reasoning_effort"] == "low"
    assert chat(instructions="", reasoning={}, truncation="disabled") == chat()


def test_tools() -> None:
    (made,) = chat(tools=[{"type": "function", "name": "f", "parameters": {"a": 1}}])["tools"]
    assert made["function"]["name"] == "f"
    assert made["function"]["parameters"] == {"a": 1}
    assert "tools" not in chat(tools=[])


UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("stored-response", {"previous_response_id": "resp_1"}),
    ("truncation", {"truncation": "auto"}),
    ("truncation", {"truncation": None}),
    ("message-shape", {"previous_input_messages": []}),
    ("message-shape", {"input": 5}),
    ("message-shape", {"input": ["x"]}),
    ("message-shape", {"input": [{"role": "tool", "content": "x"}]}),
    ("message-shape", {"input": [SAID | {"status": "incomplete"}]}),
    ("message-shape", {"input": [CALL | {"name": None}]}),
    ("message-shape", {"input": [ANSWER | {"output": []}]}),
    ("message-shape", {"instructions": 5}),
    ("message-shape", {"input": [ANSWER | {"id": 5}]}),
    ("message-shape", {"input": [THOUGHT | {"id": None}]}),
    ("content-part", {"input": [THOUGHT | {"content": [{"type": "summary_text", "text": "a"}]}]}),
    ("content-part", {"input": [THOUGHT | {"content": [], "summary": THOUGHT["content"]}]}),
    ("tool-shape", {"input": [{"role": "developer", "content": "a", "tools": [{}]}]}),
    ("content-part", {"input": [{"type": "web_search_call"}]}),
    ("content-part", {"input": [{k: v for k, v in SAID.items() if k != "type"}]}),
    ("content-part", {"input": [THOUGHT | {"encrypted_content": "x"}]}),
    ("content-part", {"input": [{"role": "user", "content": [{"type": "output_text"}]}]}),
    ("multimodal", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("tool-shape", {"input": [CALL | {"namespace": "n"}]}),
    ("tool-shape", {"tools": [{"type": "web_search"}]}),
    ("tool-shape", {"tools": "x"}),
    ("field-shape", {"reasoning": "low"}),
    ("template-kwargs", {"chat_template_kwargs": {"enable_thinking": None}}),
    ("template-kwargs", {"chat_template_kwargs": {"reasoning_effort": "auto"}}),
    ("content-part", {"input": [{"role": "system", "content": [
        {"type": "input_text", "text": "x-anthropic-billing-header: 1"}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "body"), UNKNOWN, ids=str)
def test_left_to_the_replica(reason: str, body: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable) as unknown:
        chat(**body)
    assert unknown.value.reason == reason


def test_a_response_has_the_ids_of_its_chat() -> None:
    tokenizer = demo_tokenizer()
    messages = [{"role": "system", "content": "Be brief."}, USER]
    plain = msgspec.json.decode(msgspec.json.encode({"messages": messages}), type=ChatFields)
    asked = read({"input": "hi", "instructions": "Be brief."})
    assert tokenizer.chat_ids(asked) == tokenizer.chat_ids(plain)


def test_a_template_prints_a_call_with_its_name_first(tmp_path: Path) -> None:
    """In a chat its arguments come first: vLLM sorts the keys there alone."""
    shown = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}"
    )
    tokenizer = Tokenizer.load("m", folder_with(tmp_path, chat_template=shown))
    assert tokenizer.chat_text(read({"input": [CALL]})) == (
        '{"id": "c1", "function": {"name": "f", "arguments": {}}, "type": "function"}'
    )
    messages = [{"role": "assistant", "tool_calls": [MADE_CALL]}]
    asked = msgspec.json.decode(msgspec.json.encode({"messages": messages}), type=ChatFields)
    assert tokenizer.chat_text(asked) == (
        '{"id": "c1", "function": {"arguments": {}, "name": "f"}, "type": "function"}'
    )
