"""A message as its form and its texts: what many messages have in common, and what each has alone.

Invariants:
- A form and its texts say all of what the template sees of a message
  (`tokenlane.tokens.chat.conversation`). What has more to it has no form.
- The arguments of a call are one text: what `tojson` writes of them.
- A form's name is the role alone where it is a role and a text.
"""

from collections.abc import Iterator
from itertools import compress, product
from typing import Any, Final, Literal, NamedTuple

from tokenlane.tokens.chat.conversation import (
    BILLING_LINE,
    PLAIN_ROLES,
    ContentFormat,
    Message,
    arguments_of,
    is_plain,
    plain,
    reasoning_of,
)
from tokenlane.tokens.chat.holes import Asked, Text
from tokenlane.tokens.chat.json_holes import Json
from tokenlane.tokens.chat.residual import Unknown
from tokenlane.tokens.chat.template_json import to_json

_MOST_CALLS: Final = 8
_TEXTS_OF_CALL: Final = 3
# What clients write beside a message that says nothing by it, and vLLM drops.
_NULL: Final = frozenset(
    "annotations audio function_call reasoning reasoning_content refusal tool_calls".split()
)
_EMPTY: Final = frozenset(("annotations", "tool_calls"))
_REASONS: Final = frozenset(("reasoning", "reasoning_content"))


class Form(NamedTuple):
    """content: a text; or none, in one of two ways. calls: how many it makes, each of an id, a name
    and arguments. thought: it has what was thought. answers: it has the id of the call that it
    answers. named: it has the name of who speaks. joined: its text came in parts."""

    role: str
    content: Literal["text", "empty", "null"] = "text"
    calls: int = 0
    thought: bool = False
    answers: bool = False
    named: bool = False
    joined: bool = False

    @property
    def texts(self) -> int:
        """How many texts a message of this form has."""
        others = int(self.content == "text") + self.thought + self.answers + self.named
        return others + _TEXTS_OF_CALL * self.calls

    @property
    def name(self) -> str:
        """What it is called."""
        called = [self.content, f"{self.calls} called"] if self.calls else []
        words = ("thought", "answering", "named", "joined")
        return ", ".join([self.role, *called, *compress(words, self[3:])])


def _all_forms() -> Iterator[Form]:
    for named, joined in product((False, True), repeat=2):
        yield from [Form(role, named=named, joined=joined) for role in sorted(PLAIN_ROLES)]
        yield Form("tool", answers=True, named=named, joined=joined)
        yield Form("assistant", thought=True, named=named, joined=joined)
        for calls, thought in product(range(1, _MOST_CALLS + 1), (False, True)):
            yield Form("assistant", "text", calls, thought, named=named, joined=joined)
            if not joined:
                yield Form("assistant", "empty", calls, thought, named=named)
                yield Form("assistant", "null", calls, thought, named=named)


# By name.
FORMS: Final[dict[str, Form]] = {form.name: form for form in _all_forms()}
_NAMES: Final = {form: name for name, form in FORMS.items()}
# New strings, not the request's own: names are kept in the cache.
_ROLES: Final = {role: role for role in FORMS}
TEXTS: Final = {name: form.texts for name, form in FORMS.items()}


def forms_of(messages: list[Any]) -> tuple[str, ...] | None:
    """Return the names of the messages' forms; None where one has none, or there is no message."""
    forms: list[str] = []
    for message in messages:
        if is_plain(message):
            forms.append(_ROLES[message["role"]])
            continue
        form = _form(message) if isinstance(message, dict) else None
        if form is None:
            return None
        forms.append(form)
    return tuple(forms) or None


def texts_of(messages: list[Any], forms: tuple[str, ...]) -> list[str]:
    """Return the texts of messages of these forms, in order. Raise Unrenderable."""
    texts: list[str] = []
    for message, name in zip(messages, forms, strict=True):
        content = message.get("content")
        if name in PLAIN_ROLES and type(content) is str:
            texts.append(content)
            continue
        form = FORMS[name]
        if form.content == "text":
            said = content if type(content) is str else "\n".join(_texts(content) or [])
            texts.append(said)
        for call in message["tool_calls"] if form.calls else ():
            function = call["function"]
            arguments = to_json(arguments_of(function["arguments"]))
            texts += [call["id"], function["name"], arguments]
        if form.thought:
            texts.append(reasoning_of(message))
        if form.answers:
            texts.append(message["tool_call_id"])
        if form.named:
            texts.append(message["name"])
    return texts


def _form(message: Message) -> str | None:
    role, content = message.get("role"), message.get("content")
    joined, billed = False, False
    if isinstance(content, list):
        said = _texts(content)
        if said is None:
            return None
        joined, billed = len(said) > 1, any(one.startswith(BILLING_LINE) for one in said)
        content = "\n".join(said)
    if type(content) is not str and not (content is None and role == "assistant"):
        return None
    more = {
        key
        for key, value in message.items()
        if key not in ("role", "content")
        and not (value is None and key in _NULL)
        and not (value == [] and key in _EMPTY)
    }
    calls = message["tool_calls"] if "tool_calls" in more else []
    more.discard("tool_calls")
    if type(role) is not str or not all(type(message[key]) is str for key in more):
        return None
    thought = role == "assistant" and not _REASONS.isdisjoint(more)
    answers, named = "tool_call_id" in more, "name" in more
    others = more - _REASONS if thought else more
    if others - {"tool_call_id", "name"} or not _are_calls(calls):
        return None
    how: Literal["text", "empty", "null"] = "text"
    if content is None:
        how = "null"
    elif calls and not content:
        how = "empty"
    elif role == "system" and (billed or content.startswith(BILLING_LINE)):
        return None
    return _NAMES.get(Form(role, how, len(calls), thought, answers, named, joined))


def _texts(content: list[Any]) -> list[str] | None:
    """Return the texts of content in parts: one, which is read as if it were the text alone, or
    several that are not empty, which most templates get in one, line by line."""
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or len(part) != 2 or part.get("type") != "text":
            return None
        text = part.get("text")
        if type(text) is not str or (text == "" and len(content) > 1):
            return None
        texts.append(text)
    return texts or None


def _are_calls(calls: Any) -> bool:
    """Return whether each of these is an id, a name and arguments."""
    if not isinstance(calls, list):
        return False
    for call in calls:
        function = call.get("function") if isinstance(call, dict) and len(call) == 3 else None
        if not isinstance(function, dict) or len(function) != 2 or call.get("type") != "function":
            return False
        said = (call.get("id"), function.get("name"), function.get("arguments"))
        if not all(type(text) is str for text in said):
            return False
    return True


def owners(forms: tuple[str, ...]) -> list[int]:
    """Return the number of the message that each text is of."""
    found: list[int] = []
    for number, name in enumerate(forms):
        found += [number] * TEXTS[name]
    return found


def with_holes(
    name: str, first: int, content_format: ContentFormat, asked: Asked, names_first: bool
) -> Message:
    """Return the template's message of this form, with a hole for each text. first: the number of
    the first of them. names_first: a call's name stands before its arguments. Raise Unknown where
    the template gets the parts of a text."""
    form, texts = FORMS[name], iter([Text(asked, (first + at,)) for at in range(TEXTS[name])])
    if form.joined and content_format == "openai" and form.role != "tool":
        raise Unknown("a text in parts")
    if form.content == "null":
        message: Message = {"role": form.role, "content": "" if content_format == "string" else []}
    else:
        content = next(texts) if form.content == "text" else ""
        message = plain(form.role, content, content_format)
    calls = []
    for _ in range(form.calls):
        call = {"id": next(texts), "function": {}, "type": "function"}
        called = next(texts)
        arguments = Json(next(texts))
        call["function"] = (
            {"name": called, "arguments": arguments}
            if names_first
            else {"arguments": arguments, "name": called}
        )
        calls.append(call)
    if calls:
        message["tool_calls"] = calls
    if form.thought:
        message["reasoning"] = message["reasoning_content"] = next(texts)
    if form.answers:
        message["tool_call_id"] = next(texts)
    if form.named:
        message["name"] = next(texts)
    return message
