"""Request messages to the conversation a chat template sees, as vLLM 0.32 converts them.

Invariants:
- Input is decoded JSON, output is new dicts: the caller's values are never changed.
- Only shapes whose conversion is known exactly are converted. Anything else (media, shapes that
  vLLM refuses or reads in another way) raises Unrenderable: the replica decides.
- What survives of a message: role, content, name, task; of an assistant's also tool_calls,
  reasoning (under both of its names); of a tool's also tool_call_id; of a developer's also tools.
- Key order is part of the result: templates print whole objects with `tojson`, and vLLM's own
  parsing puts known keys first, in the order of the constants below.
"""

import json
from typing import Any, Final, Literal

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.prompt_fields import is_deep

ContentFormat = Literal["string", "openai"]
Message = dict[str, Any]

TEXT_PARTS: Final = ("text", "refusal", "thinking")  # each under a key of its own name
MEDIA_KEYS: Final = frozenset(
    "image_url input_image image_pil image_embeds audio_url input_audio audio_embeds "
    "video_url video_embeds prompt_embeds file".split()
)
# Keys of content parts that vLLM knows for any type; the others reach an openai-format template.
KNOWN_PART_KEYS: Final = MEDIA_KEYS | frozenset(
    "type text refusal thinking closed name uuid data prompt_cache_breakpoint".split()
)
# Keys whose odd values make vLLM refuse a message, whatever its role.
TEXT_OR_NULL_KEYS: Final = ("tool_call_id", "reasoning", "reasoning_content", "refusal", "task")
NULL_KEYS: Final = ("function_call", "audio", "author")
CALL_KEYS: Final = ("id", "function", "type")
FUNCTION_KEYS: Final = ("arguments", "name")
# A line whose value changes with every request of one client: vLLM drops it from system messages.
BILLING_LINE: Final = "x-anthropic-billing-header"
PLAIN_ROLES: Final = frozenset(("system", "user", "assistant", "tool"))


def conversation(messages: Any, content_format: ContentFormat) -> list[Message]:
    """Return the template's `messages` of a request's `messages`.

    Raise RequestError(400) for what can be no conversation, Unrenderable for what is unknown.
    """
    if not isinstance(messages, list):
        raise RequestError(400, "`messages` must be a list of messages.", param="messages")
    if not messages:
        raise RequestError(
            400,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
            param="messages",
        )
    if is_deep(messages):
        raise Unrenderable("json")
    return [
        _plain(message, content_format) or _message(message, content_format) for message in messages
    ]


def _plain(message: Any, content_format: ContentFormat) -> Message | None:
    """Return what `_message` makes of a role and a text, which most messages are, at a fifth of its
    price: the conversion is the longest step of a long conversation's next turn."""
    if not is_plain(message):
        return None
    return plain(message["role"], message["content"], content_format)


def is_plain(message: Any) -> bool:
    """Return whether a message is a role and a text, and no more."""
    if not isinstance(message, dict) or len(message) != 2:
        return False
    role, content = message.get("role"), message.get("content")
    if type(content) is not str or type(role) is not str or role not in PLAIN_ROLES:
        return False
    return role != "system" or not content.startswith(BILLING_LINE)


def plain(role: str, text: Any, content_format: ContentFormat) -> Message:
    """Return the template's message of a role and a text alone; or of what stands for the text."""
    if content_format == "string" or role == "tool":
        return {"role": role, "content": text}
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _message(message: Any, content_format: ContentFormat) -> Message:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unrenderable("message-shape")
    role = message["role"]
    _check_keys(message, role)
    parts = _content(message, role)
    result: Message = {"role": role}
    if role == "tool" and content_format == "openai":
        # Templates expect a tool's answer as text, whatever the format.
        result["content"] = "\n".join(part["text"] for part in parts)
    elif content_format == "string":
        result["content"] = "\n".join(part["text"] for part in parts if part["text"])
    else:
        result["content"] = parts
    if role == "assistant":
        _add_assistant(message, result)
    if role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    for key in ("name", "task"):
        if message.get(key) is not None:
            result[key] = message[key]
    if role == "developer":
        result["tools"] = None
    return result


def _check_keys(message: Message, role: str) -> None:
    """Raise Unrenderable where a known key has a value that vLLM may refuse."""
    if not isinstance(message.get("name", ""), str):
        raise Unrenderable("message-shape")
    if not all(isinstance(message.get(key), str | None) for key in TEXT_OR_NULL_KEYS):
        raise Unrenderable("message-shape")
    if any(message.get(key) is not None for key in NULL_KEYS):
        raise Unrenderable("message-shape")
    if message.get("tools") is not None or (role != "assistant" and message.get("tool_calls")):
        raise Unrenderable("tool-shape")


def _content(message: Message, role: str) -> list[dict[str, Any]]:
    """Return content as text parts, without a system message's billing line. A string is one
    part."""
    if "content" not in message:
        return []
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif content is None and role == "assistant" and message.get("tool_calls", ()) is not None:
        return []
    elif not isinstance(content, list):
        raise Unrenderable("message-shape")
    parts = []
    for given in content:
        part = _part(given)
        if role == "system" and given["type"] == "text" and part["text"].startswith(BILLING_LINE):
            part["text"] = part["text"].partition("\n")[2]
            if not part["text"]:
                continue
        parts.append(part)
    return parts


def _part(part: Any) -> dict[str, Any]:
    # A bare string is taken or refused by vLLM depending on its neighbours: not here.
    if not isinstance(part, dict):
        raise Unrenderable("content-part")
    kind = part.get("type")
    if not isinstance(kind, str):
        kind = ""
    if not MEDIA_KEYS.isdisjoint(part) or kind in MEDIA_KEYS:
        raise Unrenderable("multimodal")
    if kind not in TEXT_PARTS or not isinstance(part.get(kind), str):
        raise Unrenderable("content-part")
    if "uuid" in part or "prompt_cache_breakpoint" in part:
        raise Unrenderable("content-part")
    if not isinstance(part.get("closed", True), bool):
        raise Unrenderable("content-part")
    if not all(isinstance(part.get(name, ""), str) for name in ("name", "data")):
        raise Unrenderable("content-part")
    extra = {name: value for name, value in part.items() if name not in KNOWN_PART_KEYS}
    return {"type": "text", "text": part[kind], **extra}


def _add_assistant(message: Message, result: Message) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise Unrenderable("tool-shape")
        if calls:
            result["tool_calls"] = [_call(call) for call in calls]
    reasoning = reasoning_of(message)
    if reasoning is not None:
        result["reasoning"] = result["reasoning_content"] = reasoning


def reasoning_of(message: Message) -> Any:
    """Return what an assistant thought, in whichever of its two fields it stands; else None."""
    reasoning = message.get("reasoning")
    return message.get("reasoning_content") if reasoning is None else reasoning


def _call(call: Any) -> dict[str, Any]:
    """Return a tool call with its arguments as a dict."""
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(function, dict)
        or call.get("type") != "function"
        or not all(isinstance(call.get(key), str) for key in ("id", "type"))
        or not all(isinstance(function.get(key), str) for key in FUNCTION_KEYS)
    ):
        raise Unrenderable("tool-shape")
    ordered = _ordered(function, FUNCTION_KEYS)
    ordered["arguments"] = arguments_of(function["arguments"])
    return {**_ordered(call, CALL_KEYS), "function": ordered}


def arguments_of(text: str) -> dict[str, Any]:
    """Return a call's arguments: what is no JSON object becomes {}. Raise Unrenderable."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    except RecursionError:
        raise Unrenderable("json") from None
    if is_deep(arguments):
        raise Unrenderable("json")
    return arguments if isinstance(arguments, dict) else {}


def _ordered(given: dict[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    known = {key: given[key] for key in first if key in given}
    return known | {key: value for key, value in given.items() if key not in known}


def developer_as_system(messages: list[Message]) -> list[Message]:
    """Convert messages for templates without a developer role: its messages become system messages,
    and all system messages become one, in front, unless the only one stands there already."""
    renamed = [
        _as_system(message) if message["role"] == "developer" else message for message in messages
    ]
    places = [at for at, message in enumerate(renamed) if message["role"] == "system"]
    if places in ([], [0]):
        return renamed
    texts = [_flat(renamed[at].get("content", "")) for at in places]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in renamed if message["role"] != "system")]


def _as_system(message: Message) -> Message:
    return {key: value for key, value in {**message, "role": "system"}.items() if key != "tools"}


def _flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def tool_list(tools: Any, *, may_be_empty: bool = False) -> list[dict[str, Any]] | None:
    """Return the template's `tools`: known keys only, in vLLM's order, with its nulls.

    Raise RequestError(400) for an empty list (a chat's own; other dialects may have one),
    Unrenderable for shapes vLLM refuses.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unrenderable("tool-shape")
    if not tools and not may_be_empty:
        raise RequestError(
            400, "`tools` must not be empty: name a tool, or leave the field out.", param="tools"
        )
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unrenderable("tool-shape")
    description, parameters = function.get("description"), function.get("parameters")
    strict, deferred = function.get("strict"), function.get("defer_loading")
    whole_deferred = tool.get("defer_loading")
    if (
        not isinstance(function.get("name"), str)
        or not isinstance(description, str | None)
        or not isinstance(parameters, dict | None)
        or not all(isinstance(value, bool | None) for value in (strict, deferred, whole_deferred))
    ):
        raise Unrenderable("tool-shape")
    result: dict[str, Any] = {
        "name": function["name"],
        "description": description,
        "parameters": parameters,
    }
    if strict is not None:
        result["strict"] = strict
    if deferred is None:
        deferred = whole_deferred
    if deferred is not None:
        result["defer_loading"] = deferred
    outer: dict[str, Any] = {"type": "function", "function": result}
    if whole_deferred is not None:
        outer["defer_loading"] = whole_deferred
    return outer
