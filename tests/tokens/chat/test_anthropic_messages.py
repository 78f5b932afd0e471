"""Anthropic's dialect as chats: what vLLM makes of each shape, and what is left to it.

`tests/vllm/test_dialects.py` holds the same against real vLLM.
"""

from typing import Any

import msgspec
import pytest

from tests.support import demo_tokenizer
from tokenlane.errors import Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatFields, MessagesFields
from tokenlane.tokens.chat import anthropic_messages
from tokenlane.tokens.chat.template import Template

USER = {"role": "user", "content": "hi"}
SCHEMA = {"properties": {"a": {"type": "integer"}}}


def read(body: dict[str, Any]) -> MessagesFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=MessagesFields)


def chat(system_first: bool = False, **body: Any) -> dict[str, Any]:
    """What it becomes, decoded."""
    request = read({"messages": [USER], **body})
    messages, _ = anthropic_messages.messages_of(request, system_first=system_first)
    return {"messages": messages, **fields(anthropic_messages.fields_of(request, lambda: "none"))}


def fields(made: ChatFields) -> dict[str, Any]:
    """What a chat says beside its messages, decoded."""
    return {
        name: prompt_fields.value(getattr(made, name))
        for name in made.__struct_fields__
        if bytes(getattr(made, name))
    }


def turns(*content: Any, role: str = "user", **body: Any) -> list[Any]:
    """The messages that one with this content becomes."""
    made: list[Any] = chat(messages=[{"role": role, "content": list(content)}], **body)["messages"]
    return made


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"é": 1.0}}
CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"\\u00e9": 1.0}'}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "4"}
BILLING = "x-anthropic-billing-header: 1"
CHATS: list[tuple[list[Any], list[Any]]] = [
    ([text("a")], [{"role": "user", "content": "a"}]),
    ([text("a"), text("")], [{"role": "user", "content": "a"}]),
    ([text("a"), text("b")], [{"role": "user", "content": [text("a"), text("b")]}]),
    ([text("a") | {"cache_control": {"type": "ephemeral"}}], [{"role": "user", "content": "a"}]),
    ([], []),
    ([RESULT], [{"role": "tool", "tool_call_id": "t1", "content": "4"}]),
    (
        [RESULT, text("so?")],
        [
            {"role": "tool", "tool_call_id": "t1", "content": "4"},
            {"role": "user", "content": "so?"},
        ],
    ),
    (
        [RESULT | {"content": [text("a"), text("b")]}],
        [{"role": "tool", "tool_call_id": "t1", "content": "a\nb"}],
    ),
    ([RESULT | {"content": None}], [{"role": "tool", "tool_call_id": "t1", "content": ""}]),
]


@pytest.mark.parametrize(("content", "made"), CHATS, ids=str)
def test_a_users_blocks(content: list[Any], made: list[Any]) -> None:
    assert turns(*content) == made


def test_an_assistants_blocks() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    said = turns(thought, hidden, text("a"), USE, role="assistant")
    assert said == [{"role": "assistant", "reasoning": "hm", "tool_calls": [CALL], "content": "a"}]
    assert turns(hidden, role="assistant") == [{"role": "assistant"}]


def test_the_system_prompt() -> None:
    assert chat(system="s")["messages"] == [{"role": "system", "content": "s"}, USER]
    assert chat(system="")["messages"] == [USER]
    blocks = [text("a"), text(BILLING), text("b")]
    assert chat(system=blocks)["messages"][0] == {"role": "system", "content": "ab"}


@pytest.mark.parametrize("system_first", [False, True])
def test_system_messages_among_the_others(system_first: bool) -> None:
    late = {"role": "system", "content": [text("late")]}
    billed = {"role": "system", "content": BILLING}
    made = chat(system_first, system="s", messages=[USER, late, billed, USER])["messages"]
    if system_first:
        assert made == [{"role": "system", "content": "slate"}, USER, USER]
    else:
        assert made == [
            {"role": "system", "content": "s"},
            USER,
            {"role": "system", "content": "late"},
            USER,
        ]


def test_tools() -> None:
    (made,) = chat(tools=[{"name": "f", "input_schema": SCHEMA, "cache_control": {}}])["tools"]
    assert made["function"]["parameters"] == {**SCHEMA, "type": "object"}
    assert list(made["function"]["parameters"]) == ["properties", "type"]
    assert (made["type"], made["function"]["name"]) == ("function", "f")
    # As vLLM's templates see it; a chat's own empty list is refused.
    assert demo_tokenizer().chat_ids(read({"messages": [USER], "tools": []}))


def test_effort() -> None:
    assert chat(output_config={"effort": "low"})["reasoning_effort"] == "low"
    assert chat(output_config={"format": None}) == chat()
    disabled = {"type": "disabled"}
    asked = chat(output_config={"effort": "low"}, thinking=disabled)
    assert asked["reasoning_effort"] == "none"
    assert chat(thinking={"type": "enabled", "budget_tokens": 1024}) == chat()


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("message-shape", {"messages": "x"}),
    ("message-shape", {"messages": [{"role": "tool", "content": "x"}]}),
    ("message-shape", {"messages": [{"role": "user"}]}),
    ("message-shape", {"messages": [{"role": "user", "content": ["x"]}]}),
    ("message-shape", {"system": 5}),
    ("content-part", {"system": [IMAGE]}),
    ("content-part", {"messages": [{"role": "user", "content": [{"type": "document"}]}]}),
    ("content-part", {"messages": [{"role": "user", "content": [text("x") | {"text": 5}]}]}),
    ("content-part", {"messages": [{"role": "assistant", "content": [RESULT]}]}),
    ("multimodal", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("multimodal", {"messages": [{"role": "user", "content": [RESULT | {"content": [IMAGE]}]}]}),
    ("tool-shape", {"messages": [{"role": "assistant", "content": [USE | {"id": None}]}]}),
    ("tool-shape", {"tools": [{"name": "f"}]}),
    ("tool-shape", {"tools": {}}),
    ("field-shape", {"thinking": {"type": "some"}}),
    ("field-shape", {"thinking": {"type": "enabled"}}),
    ("field-shape", {"thinking": {"type": "enabled", "budget_tokens": 1023}}),
    ("field-shape", {"thinking": {"type": "adaptive", "display": []}}),
    ("field-shape", {"output_config": {"effort": "huge"}}),
]


@pytest.mark.parametrize(("reason", "body"), UNKNOWN, ids=str)
def test_left_to_the_replica(reason: str, body: dict[str, Any]) -> None:
    with pytest.raises(Unrenderable) as unknown:
        chat(**body)
    assert unknown.value.reason == reason


SYSTEM_FIRST = {
    "{% for m in messages %}{{ m.content }}{% endfor %}": False,
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('no') }}{% endif %}{% endfor %}": True,
    # Refused for want of what vLLM does not give it there.
    "{{ bos_token + 'x' }}": True,
    "{% generation %}x{% endgeneration %}": True,
}


@pytest.mark.parametrize(("source", "first"), SYSTEM_FIRST.items())
def test_templates_that_want_the_system_first(source: str, first: bool) -> None:
    assert Template(source).system_first is first


def test_a_message_has_the_ids_of_its_chat() -> None:
    tokenizer = demo_tokenizer()
    asked = {"system": "Be brief.", "messages": [USER], "thinking": {"type": "disabled"}}
    same = {"messages": [{"role": "system", "content": "Be brief."}, USER]}
    plain = msgspec.json.decode(
        msgspec.json.encode(same | {"reasoning_effort": "none"}), type=ChatFields
    )
    assert tokenizer.chat_ids(read(asked)) == tokenizer.chat_ids(plain)
