"""Requests in Anthropic's dialect as the chats that vLLM 0.32 makes of them.

Invariants:
- Only shapes whose conversion is known exactly: anything else (media, tools that change within a
  conversation, shapes that vLLM refuses or reads in another way) raises Unrenderable.
- What is made goes on as any chat does: see `tokenlane.tokens.chat.conversation`.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tokenlane.errors import Unrenderable
from tokenlane.protocols import prompt_fields
from tokenlane.protocols.bodies import ABSENT, ChatFields, MessagesFields, ResponsesFields
from tokenlane.tokens.chat.conversation import BILLING_LINE, Message

EFFORTS = ("low", "medium", "high", "xhigh", "max")
# What a chat's tool says, in vLLM's order.
TOOL_KEYS = ("name", "description", "parameters", "strict", "defer_loading")
THINKING = frozenset({"enabled", "disabled", "adaptive"})
LEAST_BUDGET_TOKENS = 1024
DISPLAYS = (None, "summarized", "omitted", "updates")
Block = dict[str, Any]


# The chat messages of a request, decoded JSON: a list, unless a chat has something else there. And
# of another dialect's, how many of these stand before the first of the request's own, and behind
# each of them; 0 where there is none, or what follows may change them.
Converted = tuple[Any, list[int]]


def messages_of(request: MessagesFields, *, system_first: bool) -> Converted:
    """Return the chat messages of a request. system_first: the chat template takes a system message
    nowhere but in front. Raise Unrenderable."""
    given = prompt_fields.value(request.messages)
    if not isinstance(given, list):
        raise Unrenderable("message-shape")
    system, messages = system_of(request), list[Message]()
    late = system_first and any(_role(one) == "system" for one in given)
    if late:
        system += "".join([_system_text(one) for one in given if _role(one) == "system"])
    if system:
        messages.append({"role": "system", "content": system})
    made = _continued([one for one in given if not (late and _role(one) == "system")], messages)
    return (messages, [0] * (len(given) + 1)) if late else made


def messages_behind(given: Any) -> Converted:
    """As `messages_of`, of those that follow others. Raise Unrenderable, also where one may change
    what comes before it."""
    if not isinstance(given, list):
        raise Unrenderable("message-shape")
    if any(_role(one) == "system" for one in given):
        raise Unrenderable("message-shape")
    return _continued(given, [])


def _continued(given: list[Any], messages: list[Message]) -> Converted:
    counts = [len(messages)]
    for one in given:
        if _role(one) != "system":
            _add(one, messages)
        elif text := _system_text(one):
            messages.append({"role": "system", "content": text})
        counts.append(len(messages))
    return messages, counts


def system_of(request: MessagesFields) -> str:
    """Return the system prompt, which has a field of its own. Raise Unrenderable."""
    return "".join(_system_texts(prompt_fields.value(request.system)))


def fields_of(request: MessagesFields, effort_of_none: Callable[[], str]) -> ChatFields:
    """Return the chat of a request without its messages. effort_of_none: the effort that stands for
    thinking switched off. Raise Unrenderable."""
    tools = prompt_fields.value(request.tools)
    made = None if tools is None else _tools(tools)
    effort = _effort(prompt_fields.value(request.output_config))
    if _thinking(prompt_fields.value(request.thinking)) == "disabled":
        effort = effort_of_none()
    return chat_fields(request, made, effort)


def chat_fields(
    request: MessagesFields | ResponsesFields, tools: list[dict[str, Any]] | None, effort: Any
) -> ChatFields:
    """Return the chat that a request of another dialect becomes, without its messages."""
    return ChatFields(
        tools=ABSENT if tools is None else encoded(tools),
        chat_template_kwargs=request.chat_template_kwargs,
        reasoning_effort=ABSENT if effort is None else encoded(effort),
        kv_transfer_params=request.kv_transfer_params,
        add_special_tokens=request.add_special_tokens,
    )


def encoded(value: Any) -> msgspec.Raw:
    """Return JSON of what was made of a request."""
    return msgspec.Raw(msgspec.json.encode(value))


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise Unrenderable("message-shape")
    return str(role)


def _blocks(content: Any) -> list[Block]:
    """Return the blocks of a list. Their unknown keys are nothing to vLLM."""
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise Unrenderable("message-shape")
    return content


def _string(block: Block, key: str) -> str:
    """Return a text that may be missing."""
    text = block.get(key)
    if not isinstance(text, str | None):
        raise Unrenderable("content-part")
    return text or ""


def _system_texts(content: Any) -> list[str]:
    """Return the texts of the system prompt; as a whole it may begin with a billing line, a block
    not."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    texts = []
    for block in _blocks(content):
        kind = block.get("type")
        if kind == "text":
            text = _string(block, "text")
            if not text.startswith(BILLING_LINE):
                texts.append(text)
        elif kind not in ("thinking", "redacted_thinking"):
            raise Unrenderable("content-part")
    return texts


def _system_text(message: Message) -> str:
    """Return the text of a system message among the others; empty where there is none."""
    content = message.get("content")
    if isinstance(content, str):
        return "" if content.startswith(BILLING_LINE) else content
    return "".join(_system_texts(_blocks(content)))


def _add(message: Message, messages: list[Message]) -> None:
    """Put what a message becomes behind those before it: the answers of tools go in front of the
    user's own words."""
    role, content = message["role"], message.get("content")
    made: Message = {"role": role}
    if isinstance(content, str):
        made["content"] = content
    else:
        _fill(made, _blocks(content), messages)
    if role != "user" or "content" in made:
        messages.append(made)


def _fill(made: Message, blocks: list[Block], messages: list[Message]) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                if text := _string(block, "text"):
                    texts.append(text)
            case "thinking":
                if block.get("thinking") is not None:
                    thoughts.append(_string(block, "thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block))
            case "tool_result" if made["role"] == "user":
                messages.append(_result(block))
            case "image":
                raise Unrenderable("multimodal")
            case _:
                raise Unrenderable("content-part")
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if texts:
        parts = [{"type": "text", "text": text} for text in texts]
        made["content"] = parts if len(parts) > 1 else texts[0]


def _call(block: Block) -> dict[str, Any]:
    given = block.get("input")
    # vLLM makes up an id where there is none.
    if not isinstance(given, dict | None) or not _string(block, "id"):
        raise Unrenderable("tool-shape")
    function = {"name": _string(block, "name"), "arguments": json.dumps(given or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: Block) -> Message:
    """Return a tool's answer: its texts, a line each."""
    content = block.get("content")
    if not isinstance(content, str | None):
        texts = []
        for part in _blocks(content):
            if part.get("type") == "image":
                raise Unrenderable("multimodal")
            if part.get("type") == "tool_reference":
                raise Unrenderable("content-part")
            if part.get("type") == "text":
                texts.append(part.get("text", ""))
        if not all(isinstance(text, str) for text in texts):
            raise Unrenderable("content-part")
        content = "\n".join(texts)
    identity = _string(block, "tool_use_id")
    return {"role": "tool", "tool_call_id": identity, "content": content or ""}


def _tools(tools: Any) -> list[dict[str, Any]]:
    if not isinstance(tools, list):
        raise Unrenderable("tool-shape")
    made = []
    for tool in tools:
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict):
            raise Unrenderable("tool-shape")
        function = {key: tool.get(key) for key in TOOL_KEYS}
        function["parameters"] = schema if "type" in schema else {**schema, "type": "object"}
        made.append({"type": "function", "function": function})
    return made


def _effort(config: Any) -> str | None:
    if config is None:
        return None
    effort = config.get("effort") if isinstance(config, dict) else ""
    if effort is not None and effort not in EFFORTS:
        raise Unrenderable("field-shape")
    return effort


def _thinking(given: Any) -> str | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or kind not in THINKING:
        raise Unrenderable("field-shape")
    if kind == "enabled" and not _is_budget(given.get("budget_tokens")):
        raise Unrenderable("field-shape")
    if given.get("display") not in DISPLAYS:
        raise Unrenderable("field-shape")
    return kind


def _is_budget(given: Any) -> bool:
    return isinstance(given, int) and given >= LEAST_BUDGET_TOKENS
