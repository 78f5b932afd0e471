"""Messages as vLLM converts them. Each row was checked against vLLM 0.32's own parser."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.tokens.chat.conversation import (
    BILLING_LINE,
    ContentFormat,
    _message,
    _plain,
    conversation,
    developer_as_system,
    tool_list,
)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def call(arguments: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}} | more


DEEP = json.loads("[" * 33 + "]" * 33)

CONVERTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", user("hi"), user("hi")),
    ("no content", {"role": "user"}, user("")),
    ("unknown keys go", user("hi", foo=1), user("hi")),
    ("name stays", user("hi", name="bob"), user("hi", name="bob")),
    ("task stays", user("hi", task="t"), user("hi", task="t")),
    ("null task goes", user("hi", task=None), user("hi")),
    (
        "parts joined by newline, empty ones dropped",
        user([{"type": "text", "text": one} for one in ("a", "", "b")]),
        user("a\nb"),
    ),
    (
        "refusals and thoughts are text",
        user([{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}]),
        user("no\nhm"),
    ),
    ("custom role", {"role": "wizard", "content": "x"}, {"role": "wizard", "content": "x"}),
    (
        "assistant without content",
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
    ),
    (
        "reasoning has two names",
        {"role": "assistant", "content": "a", "reasoning_content": "r"},
        {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
    ),
    (
        "the new name wins",
        {"role": "assistant", "content": "a", "reasoning": "n", "reasoning_content": "o"},
        {"role": "assistant", "content": "a", "reasoning": "n", "reasoning_content": "n"},
    ),
    ("users do not reason", user("a", reasoning="r"), user("a")),
    (
        "no calls, no key",
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": "a"},
    ),
    (
        "tool answer",
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ),
    ("developer", {"role": "developer", "content": "d"},
     {"role": "developer", "content": "d", "tools": None}),
    (
        "billing line",
        {"role": "system", "content": "x-anthropic-billing-header: cch=1\nrest"},
        {"role": "system", "content": "rest"},
    ),
    (
        "billing line alone",
        {"role": "system", "content": "x-anthropic-billing-header: cch=1"},
        {"role": "system", "content": ""},
    ),
    (
        "a user may quote it",
        user("x-anthropic-billing-header: cch=1"),
        user("x-anthropic-billing-header: cch=1"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in CONVERTED],
                         ids=[row[0] for row in CONVERTED])  # fmt: skip
def test_string_format(given: dict[str, Any], expected: dict[str, Any]) -> None:
    (message,) = conversation([given], "string")
    assert message == expected
    assert list(message) == list(expected)


def test_openai_format_keeps_parts_and_their_unknown_keys() -> None:
    parts = [{"text": "a", "cache_control": {"x": 1}, "type": "text", "name": "n"},
             {"type": "text", "text": ""}]  # fmt: skip
    (message,) = conversation([user(parts)], "openai")
    assert message["content"] == [
        {"type": "text", "text": "a", "cache_control": {"x": 1}},
        {"type": "text", "text": ""},
    ]
    assert list(message["content"][0]) == ["type", "text", "cache_control"]


def test_openai_format_flattens_tool_answers() -> None:
    parts = [{"type": "text", "text": one} for one in ("a", "", "b")]
    (message,) = conversation([{"role": "tool", "content": parts}], "openai")
    assert message["content"] == "a\n\nb"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1, "b": [1.0, null]}', {"a": 1, "b": [1.0, None]}),
        ("{}", {}),
        ("", {}),
        ("no json", {}),
        ("[1]", {}),
        ("null", {}),
    ],
)
def test_tool_call_arguments_are_objects(arguments: str, expected: dict[str, Any]) -> None:
    message = {"role": "assistant", "tool_calls": [call(arguments, index=0)]}
    (converted,) = conversation([message], "string")
    (made,) = converted["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": expected}
    # Templates print whole calls: the order of keys is part of the prompt.
    assert list(made) == ["id", "function", "type", "index"]
    assert list(made["function"]) == ["arguments", "name"]


UNKNOWN: list[tuple[str, Any, str]] = [
    ("image", user([{"type": "image_url", "image_url": {"url": "x"}}]), "multimodal"),
    ("audio", user([{"type": "input_audio", "input_audio": {}}]), "multimodal"),
    ("image without type", user([{"image_url": "x"}]), "multimodal"),
    ("bare string part", user(["a", {"type": "text", "text": "b"}]), "content-part"),
    ("unknown part", user([{"type": "weird", "text": "a"}]), "content-part"),
    ("part without type", user([{"text": "a"}]), "content-part"),
    ("part of a list type", user([{"type": [], "text": "a"}]), "content-part"),
    ("part with uuid", user([{"type": "text", "text": "a", "uuid": None}]), "content-part"),
    ("null text", user([{"type": "text", "text": None}]), "content-part"),
    ("null content", user(None), "message-shape"),
    ("number content", user(5), "message-shape"),
    ("no role", {"content": "a"}, "message-shape"),
    ("role of a list", {"role": [], "content": "a"}, "message-shape"),
    ("no object", "a", "message-shape"),
    ("odd name", user("a", name=5), "message-shape"),
    ("neither content nor calls",
     {"role": "assistant", "content": None, "tool_calls": None}, "message-shape"),
    ("calls of a user", user("a", tool_calls=[call("{}")]), "tool-shape"),
    ("call without id", {"role": "assistant", "tool_calls": [{"type": "function"}]}, "tool-shape"),
    (
        "arguments as object",
        {"role": "assistant", "tool_calls": [call("") | {"function": {"name": "f"}}]},
        "tool-shape",
    ),
    ("tools of a developer", {"role": "developer", "tools": [{}]}, "tool-shape"),
    ("old function call", {"role": "assistant", "function_call": {}}, "message-shape"),
    ("deep arguments",
     {"role": "assistant", "tool_calls": [call("[" * 100_000)]}, "json"),
    ("arguments nested more than is rendered",
     {"role": "assistant", "tool_calls": [call('{"a":' * 33 + "1" + "}" * 33)]}, "json"),
    ("a call nested more than is rendered",
     {"role": "assistant", "tool_calls": [call("{}", more=DEEP)]}, "json"),
    ("a part nested more than is rendered",
     user([{"type": "text", "text": "a", "more": DEEP}]), "json"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reason"), [row[1:] for row in UNKNOWN],
                         ids=[row[0] for row in UNKNOWN])  # fmt: skip
def test_what_is_not_known_is_not_claimed(message: Any, reason: str) -> None:
    with pytest.raises(Unrenderable) as unknown:
        conversation([message], "string")
    assert unknown.value.reason == reason


@pytest.mark.parametrize("messages", [None, {}, "x", 5, []])
def test_no_conversation_is_a_bad_request(messages: Any) -> None:
    with pytest.raises(RequestError) as refused:
        conversation(messages, "string")
    assert (refused.value.status, refused.value.param) == (400, "messages")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "tool_calls", "function"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(messages=JSON, openai=st.booleans())
def test_any_json_is_converted_refused_or_unknown(messages: Any, openai: bool) -> None:
    before = repr(messages)
    try:
        converted = conversation(messages, "openai" if openai else "string")
    except (RequestError, Unrenderable):
        return
    finally:
        assert repr(messages) == before
    assert len(converted) == len(messages)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("user", [("user", "0")]),
        ("developer user", [("system", "0"), ("user", "1")]),
        ("user developer", [("system", "1"), ("user", "0")]),
        ("system developer user system", [("system", "0\n\n1\n\n3"), ("user", "2")]),
    ],
)
def test_developers_become_one_system_message(roles: str, expected: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": str(at)} for at, role in enumerate(roles.split())]
    merged = developer_as_system(conversation(messages, "string"))
    assert [(message["role"], message["content"]) for message in merged] == expected
    assert all("tools" not in message for message in merged)


def test_developers_with_parts_are_merged_as_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [user("x"), {"role": "developer", "content": parts}]
    merged = developer_as_system(conversation(messages, "openai"))
    assert merged[0] == {"role": "system", "content": "a\nb"}


def test_tools_keep_known_keys_in_order() -> None:
    function = {"extra": 1, "parameters": {"z": 1.0}, "name": "f"}
    (tool,) = tool_list([{"function": function, "type": "function", "junk": 2}]) or []
    assert tool == {
        "type": "function",
        "function": {"name": "f", "description": None, "parameters": {"z": 1.0}},
    }
    assert list(tool["function"]) == ["name", "description", "parameters"]


def test_deferred_loading_reaches_the_function() -> None:
    (tool,) = tool_list([{"function": {"name": "f"}, "defer_loading": True}]) or []
    assert tool["function"]["defer_loading"] is tool["defer_loading"] is True


@pytest.mark.parametrize(
    "tools",
    [{}, "x", ["x"], [{}], [{"type": "custom", "function": {"name": "f"}}],
     [{"function": {"name": 5}}], [{"function": {"name": "f", "parameters": []}}],
     [{"function": {"name": "f", "strict": "yes"}}]],
)  # fmt: skip
def test_odd_tools_are_not_claimed(tools: Any) -> None:
    with pytest.raises(Unrenderable) as unknown:
        tool_list(tools)
    assert unknown.value.reason == "tool-shape"


def test_no_tools_is_none_and_an_empty_list_is_refused() -> None:
    assert tool_list(None) is None
    with pytest.raises(RequestError) as refused:
        tool_list([])
    assert refused.value.param == "tools"


@given(
    st.sampled_from(["system", "user", "assistant", "tool", "developer", "other"]),
    st.text() | st.just(BILLING_LINE + ": x\nrules") | st.none(),
    st.sampled_from(["string", "openai"]),
)
def test_plain_messages_become_what_any_message_does(
    role: str, content: str | None, content_format: ContentFormat
) -> None:
    message = {"role": role, "content": content}
    plain = _plain(message, content_format)
    if plain is not None:
        slow = _message(message, content_format)
        assert plain == slow
        assert list(plain) == list(slow)
