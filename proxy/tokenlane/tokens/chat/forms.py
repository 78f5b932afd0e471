"""A message as its form and its texts: what many messages have in common, and what each has alone.

Invariants:
- A form and its texts say all of what the template sees of a message
  (`tokenlane.tokens.chat.conversation`). What has more to it has no form.
- The arguments of a call are one text: what `tojson` writes of them.
- A form's name is the role alone where it is a role and a text.
"""

from collections.abc import Iterator
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
from tokenlane.tokens.chat.template_json import to_json

_CONTENTS: Final[tuple[Literal["text", "empty", "null"], ...]] = ("text", "empty", "null")
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
    answers. named: it has the name of who speaks."""

    role: str
    content: Literal["text", "empty", "null"] = "text"
    calls: int = 0
    thought: bool = False
    answers: bool = False
    named: bool = False

    @property
    def texts(self) -> int:
        """How many texts a message of this form has."""
        others = int(self.content == "text") + self.thought + self.answers + self.named
        return others + _TEXTS_OF_CALL * self.calls

    @property
    def name(self) -> str:
        """What it is called."""
        called = [self.content, f"{self.calls} called"] if self.calls else []
        told = (self.thought, "thought"), (self.answers, "answering"), (self.named, "named")
        return ", ".join([self.role, *called, *[word for has, word in told if has]])


def _all_forms() -> Iterator[Form]:
    for named in (False, True):
        yield from [Form(role, named=named) for role in sorted(PLAIN_ROLES)]
        yield Form("tool", answers=True, named=named)
        yield Form("assistant", thought=True, named=named)
        for content in _CONTENTS:
            for calls in range(1, _MOST_CALLS + 1):
                for thought in (False, True):
                    yield Form("assistant", content, calls, thought, named=named)


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
        form, content = FORMS[name], message.get("content")
        if form.content == "text":
            texts.append(content if type(content) is str else content[0]["text"])
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
    if isinstance(content, list):
        content = _only_text(content)
        if content is None:
            return None
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
    elif role == "system" and content.startswith(BILLING_LINE):
        return None
    return _NAMES.get(Form(role, how, len(calls), thought, answers, named))


def _only_text(content: list[Any]) -> str | None:
    """Return the text of content that is one part, which is read as if it were the text alone."""
    part = content[0] if len(content) == 1 else None
    if not isinstance(part, dict) or len(part) != 2 or part.get("type") != "text":
        return None
    text = part.get("text")
    return text if type(text) is str else None


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


def with_holes(name: str, first: int, content_format: ContentFormat, asked: Asked) -> Message:
    """Return the template's message of this form, with a hole for each text. first: the number of
    the first of them."""
    form, texts = FORMS[name], iter([Text(asked, (first + at,)) for at in range(TEXTS[name])])
    if form.content == "null":
        message: Message = {"role": form.role, "content": "" if content_format == "string" else []}
    else:
        content = next(texts) if form.content == "text" else ""
        message = plain(form.role, content, content_format)
    calls = []
    for _ in range(form.calls):
        call = {"id": next(texts), "function": {}, "type": "function"}
        called = next(texts)
        call["function"] = {"arguments": Json(next(texts)), "name": called}
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
