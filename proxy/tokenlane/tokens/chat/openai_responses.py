"""Requests in the dialect of OpenAI's responses as the chats that vLLM 0.32 makes of them.

Invariants:
- Only shapes whose conversion is known exactly: anything else (media, built-in tools, answers that
  only a replica holds, shapes that vLLM refuses or reads in another way) raises Unrenderable.
- What is made goes on as any chat does: see `tokenlane.tokens.chat.conversation`.
"""

from typing import Any

from tokenlane.errors import Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ChatFields, ResponsesFields
from tokenlane.tokens.chat.anthropic_messages import TOOL_KEYS, Converted, chat_fields
from tokenlane.tokens.chat.conversation import BILLING_LINE, Message

Item = dict[str, Any]
PLAIN_ROLES = frozenset({"user", "system", "developer"})
# What vLLM lets through to the template, of those roles alone.
KEPT_KEYS = ("name", "task")


def messages_of(request: ResponsesFields) -> Converted:
    """Return the chat messages of a request. Raise Unrenderable."""
    instructions = system_of(request)
    first = [{"role": "system", "content": instructions}] if instructions else []
    return messages_behind(prompt_fields.value(request.input), first)


def messages_behind(given: Any, messages: list[Message]) -> Converted:
    """As `messages_of`, of what follows these, none of which it changes. Raise Unrenderable."""
    counts = [len(messages)]
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        return messages, [*counts, 0]
    if not isinstance(given, list):
        raise Unrenderable("message-shape")
    for item in given:
        _add(item, messages)
        # Items that follow may go into an assistant's message.
        counts.append(0 if messages[-1]["role"] == "assistant" else len(messages))
    return messages, counts


def system_of(request: ResponsesFields) -> str:
    """Return the instructions, which have a field of their own. Raise Unrenderable."""
    instructions = prompt_fields.value(request.instructions)
    if not isinstance(instructions, str | None):
        raise Unrenderable("message-shape")
    return instructions or ""


def fields_of(request: ResponsesFields) -> ChatFields:
    """Return the chat of a request without its messages. Raise Unrenderable."""
    if prompt_fields.value(request.previous_response_id) is not None:
        raise Unrenderable("stored-response")
    if prompt_fields.value(request.previous_input_messages) is not None:
        raise Unrenderable("message-shape")
    # Cut to the replica's context length; left out, nothing is.
    if prompt_fields.value(request.truncation) != "disabled" and bytes(request.truncation):
        raise Unrenderable("truncation")
    tools = prompt_fields.value(request.tools)
    made = None if tools is None else _tools(tools) or None
    given = prompt_fields.value(request.chat_template_kwargs)
    # Here vLLM takes both for values, unless a setting of its own makes it take them for none.
    if isinstance(given, dict) and any(one is None or one == "auto" for one in given.values()):
        raise Unrenderable("template-kwargs")
    reasoning = prompt_fields.value(request.reasoning)
    if not isinstance(reasoning, dict | None):
        raise Unrenderable("field-shape")
    return chat_fields(request, made, (reasoning or {}).get("effort"))


def _add(item: Any, messages: list[Message]) -> None:
    """Put an item behind the others, or into the assistant's message before it: thoughts, words
    and calls of one turn come as items of their own."""
    # One that is not complete is continued, where it is the last.
    if not isinstance(item, dict) or item.get("status", "completed") != "completed":
        raise Unrenderable("message-shape")
    if not isinstance(item.get("id", ""), str):
        raise Unrenderable("message-shape")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role == "assistant":
                _merge(messages, last, "content", _said(item))
            elif isinstance(role, str) and role in PLAIN_ROLES:
                if role == "developer" and item.get("tools") is not None:
                    raise Unrenderable("tool-shape")
                kept = {key: item[key] for key in KEPT_KEYS if isinstance(item.get(key), str)}
                messages.append({"role": role, "content": _content(item.get("content")), **kept})
            else:
                raise Unrenderable("message-shape")
        case "reasoning":
            _merge(messages, last, "reasoning", _thought(item))
        case "function_call":
            call = _call(item)
            if last is not None:
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "tool_calls": [call]})
        case "function_call_output":
            _text(item, "output")
            _text(item, "call_id")
            messages.append(
                {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
            )
        case _:
            raise Unrenderable("content-part")


def _merge(messages: list[Message], last: Message | None, key: str, text: str) -> None:
    if last is not None and last.get(key) is None:
        last[key] = text
    else:
        messages.append({"role": "assistant", key: text})


def _text(item: Item, key: str) -> str:
    text = item.get(key)
    if not isinstance(text, str):
        raise Unrenderable("message-shape")
    return text


def _content(content: Any) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Unrenderable("message-shape")
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_image", "input_file", "input_audio"):
            raise Unrenderable("multimodal")
        if kind != "input_text" or not part.keys() <= {"type", "text"}:
            raise Unrenderable("content-part")
        text = _text(part, "text")
        # Of a part of this type vLLM leaves the line, of others not.
        if text.startswith(BILLING_LINE):
            raise Unrenderable("content-part")
        parts.append({"type": "text", "text": text})
    return parts


def _said(item: Item) -> str:
    """Return what the assistant said: vLLM reads the first part, so more than one is left to it."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    # Without a type it is another kind of item to vLLM.
    if "type" not in item or not isinstance(part, dict) or part.get("type") != "output_text":
        raise Unrenderable("content-part")
    if not isinstance(part.get("annotations", []), list) or part.get("annotations"):
        raise Unrenderable("content-part")
    return _text(part, "text")


def _thought(item: Item) -> str:
    content, summary = item.get("content"), item.get("summary")
    if item.get("encrypted_content") or not isinstance(summary, list):
        raise Unrenderable("content-part")
    parts = content or summary
    if not parts:
        return ""
    first = parts[0] if isinstance(parts, list) else None
    kind = "reasoning_text" if content else "summary_text"
    if not isinstance(first, dict) or first.get("type") != kind:
        raise Unrenderable("content-part")
    return _text(first, "text")


def _call(item: Item) -> dict[str, Any]:
    if item.get("namespace"):
        raise Unrenderable("tool-shape")
    function = {"name": _text(item, "name"), "arguments": _text(item, "arguments")}
    return {"id": _text(item, "call_id"), "function": function, "type": "function"}


def names_first(turns: list[Message]) -> list[Message]:
    """Return what a response's template sees: vLLM sorts the keys of calls in chats alone, and a
    template may print a call as it is."""
    for turn in turns:
        for call in turn.get("tool_calls", ()):
            function = call["function"]
            call["function"] = {"name": function["name"], "arguments": function["arguments"]}
    return turns


def _tools(tools: Any) -> list[dict[str, Any]]:
    """Return the tools, which must be functions: vLLM itself handles built-in tools and those that
    are not JSON."""
    if not isinstance(tools, list):
        raise Unrenderable("tool-shape")
    made = []
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise Unrenderable("tool-shape")
        made.append({"type": "function", "function": {key: tool.get(key) for key in TOOL_KEYS}})
    return made
