"""A form and its texts say what the template sees of a message, and nothing else does."""

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.tokens.chat.conversation import ContentFormat, conversation
from tokenlane.tokens.chat.forms import FORMS, TEXTS, Form, forms_of, owners, texts_of, with_holes
from tokenlane.tokens.chat.holes import Asked, Text
from tokenlane.tokens.chat.json_holes import Json
from tokenlane.tokens.chat.residual import Unknown

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BILLING = "x-anthropic-billing-header: 1"
TWO = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
short = st.text(max_size=5)
arguments = st.sampled_from(['{"a": 1}', "{}", "x", "[2]", '{"b": {"c": "é"}, "a": null}'])
calls = st.lists(
    st.builds(
        lambda name, id_, given: {
            "function": {"name": name, "arguments": given}, "id": id_, "type": "function",
        },
        short, short, arguments,
    ),
    max_size=9,
)  # fmt: skip
contents = st.one_of(
    st.none(), short, short.map(lambda text: [{"type": "text", "text": text}]),
    st.lists(short.map(lambda text: {"text": text, "type": "text"}), max_size=2), st.just(TWO),
)  # fmt: skip
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "critic"])},
    optional={
        "content": contents,
        "tool_calls": st.one_of(st.none(), calls),
        "tool_call_id": st.one_of(st.none(), short),
        "name": short,
        "refusal": st.none(),
        "annotations": st.just([]),
        "reasoning": st.one_of(st.none(), short),
        "reasoning_content": st.one_of(st.none(), short),
    },
)


def filled(value: Any, texts: list[str]) -> Any:
    """A template's value with its holes filled."""
    match value:
        case Text(parts=(int(number),)):
            return texts[number]
        case Json(text=Text(parts=(int(number),))):
            return json.loads(texts[number])
        case dict():
            return {key: filled(one, texts) for key, one in value.items()}
        case list():
            return [filled(one, texts) for one in value]
        case _:
            return value


@given(st.lists(messages, min_size=1, max_size=4), st.sampled_from(["string", "openai"]))
def test_a_form_and_its_texts_make_the_templates_message(
    given_messages: list[dict[str, Any]], content_format: ContentFormat
) -> None:
    forms = forms_of(given_messages)
    if forms is None:
        return
    texts = texts_of(given_messages, forms)
    asked, starts = Asked(texts), accumulate([TEXTS[name] for name in forms], initial=0)
    try:
        holes = [
            with_holes(name, first, content_format, asked, names_first=False)
            for name, first in zip(forms, starts, strict=False)
        ]
    except Unknown:
        assert content_format == "openai"
        assert any(FORMS[name].joined for name in forms)
        return
    made = filled(holes, texts)
    expected = conversation(given_messages, content_format)
    # The order of keys counts, too.
    assert json.dumps(made) == json.dumps(expected)
    assert len(forms) == len(given_messages)
    assert len(owners(forms)) == len(texts)
    assert all(type(text) is str for text in texts)


@pytest.mark.parametrize(
    ("message", "form", "texts"),
    [
        ({"role": "user", "content": "a"}, "user", ["a"]),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, "user", ["a"]),
        ({"role": "tool", "content": "a"}, "tool", ["a"]),
        ({"role": "tool", "content": "a", "tool_call_id": "1"}, "tool, answering", ["a", "1"]),
        (
            {"role": "assistant", "content": "a", "tool_calls": [CALL]},
            "assistant, text, 1 called",
            ["a", "1", "f", '{"a": 1}'],
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
            "assistant, null, 2 called",
            ["1", "f", '{"a": 1}'] * 2,
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            "assistant, empty, 1 called",
            ["1", "f", '{"a": 1}'],
        ),
        ({"role": "assistant", "content": "a", "tool_calls": []}, "assistant", ["a"]),
        ({"role": "assistant", "content": "a", "refusal": None}, "assistant", ["a"]),
        ({"role": "user", "content": "a", "name": "Bo"}, "user, named", ["a", "Bo"]),
        ({"role": "user", "content": TWO}, "user, joined", ["a\nb"]),
        (
            {"role": "tool", "content": TWO, "tool_call_id": "1"},
            "tool, answering, joined",
            ["a\nb", "1"],
        ),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "b"},
            "assistant, thought",
            ["a", "b"],
        ),
        (
            {"role": "assistant", "content": "", "reasoning": "", "reasoning_content": "c"},
            "assistant, thought",
            ["", ""],
        ),
        (
            {"role": "assistant", "content": None, "reasoning": "b", "tool_calls": [CALL]},
            "assistant, null, 1 called, thought",
            ["1", "f", '{"a": 1}', "b"],
        ),
        (
            {"role": "tool", "content": "a", "tool_call_id": "1", "name": "f"},
            "tool, answering, named",
            ["a", "1", "f"],
        ),
    ],
)
def test_forms(message: dict[str, Any], form: str, texts: list[str]) -> None:
    assert forms_of([message]) == (form,)
    assert texts_of([message], (form,)) == texts
    assert TEXTS[form] == len(texts)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "user", "content": "a", "reasoning_content": "b"},
        {"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": 1},
        {"role": "assistant", "content": None, "reasoning": "b"},
        {"role": "user", "content": "a", "name": None},
        {"role": "assistant", "content": "a", "tool_calls": [CALL] * 9},
        {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "index": 0}]},
        {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "type": "custom"}]},
        {"role": "assistant", "content": "a", "tool_calls": [{**CALL, "id": None}]},
        {"role": "assistant", "content": "a", "tool_calls": ["f"]},
        {"role": "assistant", "content": "a", "tool_calls": "f"},
        {"role": "user", "content": "a", "tool_calls": [CALL]},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "")]},
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("a", 1)]},
        {"role": "system", "content": [{"type": "text", "text": text} for text in ("a", BILLING)]},
        {"role": "user", "content": [{"type": "text", "text": "a", "uuid": "b"}]},
        {"role": "user", "content": [{"type": "refusal", "refusal": "a"}]},
        {"role": "user", "content": []},
        {"role": "tool", "content": "a", "tool_call_id": None},
        {"role": "tool", "content": "a", "tool_call_id": "1", "name": "f", "task": "x"},
        {"role": "user", "content": "a", "tool_call_id": "1"},
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header"}]},
        "text",
        None,
    ],
    ids=str,
)
def test_what_is_more_than_a_form_and_texts_has_none(message: Any) -> None:
    assert forms_of([{"role": "user", "content": "a"}, message]) is None


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.joined])
def test_a_template_that_gets_parts_gets_no_text_of_all(name: str) -> None:
    asked = Asked([])
    with_holes(name, 0, "string", asked, names_first=False)
    if FORMS[name].role == "tool":
        with_holes(name, 0, "openai", asked, names_first=False)
        return
    with pytest.raises(Unknown):
        with_holes(name, 0, "openai", asked, names_first=False)


def test_a_name_says_its_form_and_a_role_alone_is_one() -> None:
    assert all(FORMS[role] == Form(role) for role in ("system", "user", "tool"))
    assert len(set(FORMS.values())) == len(FORMS)
