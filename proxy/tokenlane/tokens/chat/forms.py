"""A message as its form and its texts: what many messages have in common, and what each has alone.

Invariants:
- A form and its texts say all of what the template sees of a message
  (`tokenlane.tokens.chat.conversation`). What has more to it has no form.
- The arguments of a call are one text: what `tojson` writes of them.
- A form's name is the role alone where it is a role and a text.
"""

from typing import Any, Final, Literal, NamedTuple

from tokenlane.tokens.chat.conversation import (
    BILLING_LINE,
    PLAIN_ROLES,
    ContentFormat,
    Message,
    arguments_of,
    is_plain,
    plain,
)
from tokenlane.tokens.chat.holes import Asked, Text
from tokenlane.tokens.chat.json_holes import Json
from tokenlane.tokens.chat.template_json import to_json

_MOST_CALLS: Final = 8
_TEXTS_OF_CALL: Final = 3
# What clients write beside a message that says nothing by it, and vLLM drops.
_NULL: Final = frozenset(
    "annotations audio function_call reasoning reasoning_content refusal tool_calls".split()
)
_EMPTY: Final = frozenset(("annotations", "tool_calls"))


class Form(NamedTuple):
    """content: a text; or none, in one of two ways. calls: how many it makes, each of an id, a name
    and arguments. answers: it has the id of the call that it answers."""

    role: str
    content: Literal["text", "empty", "null"] = "text"
    calls: int = 0
    answers: bool = False

    @property
    def texts(self) -> int:
        """How many texts a message of this form has."""
        return int(self.content == "text") + _TEXTS_OF_CALL * self.calls + int(self.answers)


_CALLING: Final = {
    (content, calls): f"assistant, {content}, {calls} called"
    for content in ("text", "empty", "null")
    for calls in range(1, _MOST_CALLS + 1)
}
_ANSWERING: Final = "tool, answering"
# By name.
FORMS: Final[dict[str, Form]] = {
    **{role: Form(role) for role in sorted(PLAIN_ROLES)},
    **{name: Form("assistant", *said) for said, name in _CALLING.items()},  # type: ignore[arg-type]  # a product of literals
    _ANSWERING: Form("tool", answers=True),
}
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
        if form.answers:
            texts.append(message["tool_call_id"])
    return texts


def _form(message: Message) -> str | None:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list):
        content = _only_text(content)
        if content is None:
            return None
    more = [
        key
        for key, value in message.items()
        if key not in ("role", "content")
        and not (value is None and key in _NULL)
        and not (value == [] and key in _EMPTY)
    ]
    if role == "assistant" and more == ["tool_calls"]:
        return _calling(content, message["tool_calls"])
    if type(role) is not str or type(content) is not str:
        return None
    if role == "tool" and more == ["tool_call_id"] and type(message["tool_call_id"]) is str:
        return _ANSWERING
    if more or role not in PLAIN_ROLES or (role == "system" and content.startswith(BILLING_LINE)):
        return None
    return _ROLES[role]


def _only_text(content: list[Any]) -> str | None:
    """Return the text of content that is one part, which is read as if it were the text alone."""
    part = content[0] if len(content) == 1 else None
    if not isinstance(part, dict) or len(part) != 2 or part.get("type") != "text":
        return None
    text = part.get("text")
    return text if type(text) is str else None


def _calling(content: Any, calls: Any) -> str | None:
    how = "null" if content is None else "text" if content else "empty"
    if not isinstance(calls, list) or not (content is None or type(content) is str):
        return None
    for call in calls:
        function = call.get("function") if isinstance(call, dict) and len(call) == 3 else None
        if not isinstance(function, dict) or len(function) != 2 or call.get("type") != "function":
            return None
        said = (call.get("id"), function.get("name"), function.get("arguments"))
        if not all(type(text) is str for text in said):
            return None
    return _CALLING.get((how, len(calls)))


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
    if form.answers:
        message["tool_call_id"] = next(texts)
    return message
