"""The text of a gpt-oss chat, as vLLM 0.32 renders it with openai-harmony instead of a template.

Invariants:
- Between two special tokens stands one text that harmony encodes by itself, so that the text as a
  whole has its ids. What would be other ids (special tokens in a message, a message of several
  parts) raises Unrenderable.
- It holds today's date, and is no function of the request.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from tokenlane.errors import Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.chat import conversation
from tokenlane.tokens.chat.harmony_tools import section

# What every added token begins with.
SPECIAL: Final = "<|"
_EFFORTS: Final = (None, "low", "medium", "high")
_NAME: Final = re.compile("[A-Za-z0-9_-]+")

# One message: role, channel, content.
_Part = tuple[str, str | None, str]
_FINAL: Final = ("assistant", "final")


def text(request: ChatFields) -> str:
    """Return the text of a chat. Raise RequestError(400) as vLLM would, or Unrenderable."""
    effort = prompt_fields.value(request.reasoning_effort)
    if effort not in _EFFORTS:
        raise Unrenderable("field-shape")
    if prompt_fields.value(request.truncate_prompt_tokens) is not None:
        raise Unrenderable("truncation")
    begun = prompt_fields.flag(request.add_generation_prompt, False)
    if prompt_fields.flag(request.continue_final_message, False) and begun:
        raise Unrenderable("field-shape")
    if not isinstance(prompt_fields.value(request.chat_template_kwargs), dict | None):
        raise Unrenderable("template-kwargs")
    prompt_fields.documents(request.documents)
    messages = prompt_fields.decoded(request.messages)
    if messages == []:
        raise Unrenderable("message-shape")
    conversation.conversation(messages, "openai")  # refuses anything but a conversation
    tools = conversation.tool_list(prompt_fields.value(request.tools))
    instructions = None
    if messages[0]["role"] in ("system", "developer"):
        instructions, messages = _flat(messages[0]), messages[1:]
    developer = [] if instructions is None else ["# Instructions", instructions]
    if tools:
        developer.append(section(tools))
    parts: list[_Part] = [("system", None, _system(effort or "medium", with_tools=bool(tools)))]
    if instructions or tools:
        parts.append(("developer", None, "\n\n".join(developer)))
    parts += _turns(messages)
    if any(SPECIAL in told for _, _, told in parts):
        raise Unrenderable("message-shape")
    finals = [at for at, (who, channel, _) in enumerate(parts) if (who, channel) == _FINAL]
    last = finals[-1] if finals else -1
    kept = [
        _message(*part)
        for at, part in enumerate(parts)
        # Thoughts that led to an answer are dropped.
        if at > last or part[1] != "analysis"
    ]
    return "".join(kept) + "<|start|>assistant"


def _message(who: str, channel: str | None, told: str) -> str:
    on = "" if channel is None else f"<|channel|>{channel}"
    end = "<|call|>" if who.startswith("assistant to=") else "<|end|>"
    return f"<|start|>{who}{on}<|message|>{told}{end}"


def _system(effort: str, *, with_tools: bool) -> str:
    # Local time, as vLLM.
    today = datetime.now().strftime("%Y-%m-%d")  # noqa: DTZ005
    calls = "\nCalls to these tools must go to the commentary channel: 'functions'."
    return (
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
        f"Current date: {today}\n\nReasoning: {effort}\n\n# Valid channels: analysis, commentary, "
        "final. Channel must be included for every message." + (calls if with_tools else "")
    )


def _turns(messages: list[dict[str, Any]]) -> Iterator[_Part]:
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or []:
            names[call["id"]] = _name(call["function"]["name"])
    for message in messages:
        role = message["role"]
        if role == "assistant":
            yield from _answer(message)
        elif role == "tool":
            called = names.get(message.get("tool_call_id", ""))
            if called is None:
                raise Unrenderable("message-shape")
            yield f"functions.{called}", "commentary to=assistant", _flat(message) or ""
        elif role == "user":
            yield "user", None, _only(message)
        elif role in ("system", "developer"):
            told = _flat(message)
            if told is not None:
                yield "developer", None, f"# Instructions\n\n{told}"
        else:
            raise Unrenderable("message-shape")


def _answer(message: dict[str, Any]) -> Iterator[_Part]:
    reasoning = conversation.reasoning_of(message)
    thought: list[_Part] = [("assistant", "analysis", reasoning)] if reasoning else []
    calls = message.get("tool_calls")
    if not calls:
        yield from thought
        if answer := _only(message):
            yield *_FINAL, answer
        return
    if told := _flat(message):
        yield "assistant", "commentary", told
    yield from thought
    for call in calls:
        function = call["function"]
        who = f"assistant to=functions.{_name(function['name'])}"
        yield who, "commentary json", function["arguments"]


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise Unrenderable("tool-shape")
    return name


def _texts(message: dict[str, Any]) -> list[str] | None:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return None if content is None else [content]
    if any(part["type"] != "text" for part in content):
        raise Unrenderable("content-part")
    return [part["text"] for part in content]


def _flat(message: dict[str, Any]) -> str | None:
    return "".join(found) if (found := _texts(message)) else None


def _only(message: dict[str, Any]) -> str:
    """Return the text of a message of one part: several are encoded each by itself."""
    found = _texts(message) or [""]
    if len(found) > 1:
        raise Unrenderable("content-part")
    return found[0]
