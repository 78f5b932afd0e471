"""How a body is read: into the fields of its kind, and what follows from them at once.

Invariants:
- The body is forwarded unchanged; nothing here builds a new one.
- Whatever the bytes are, the outcome is a Body or a RequestError 400, and its message names the
  field, never its value.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from tokenlane.errors import RequestError
from tokenlane.fleet_state import IdKind
from tokenlane.protocols import bodies, json_values
from tokenlane.protocols.bodies import (
    BODIES,
    Body,
    ChatBody,
    CompletionBody,
    Kind,
    OtherBody,
    Prompted,
    ResponsesBody,
)

# Longer salts are replaced by a digest, because the salt becomes part of many keys.
_SALT_LIMIT_CHARS: Final = 256
_NAME_LIMIT_BYTES: Final = 1024

# Names of this module are found sooner than others' (compiled).
_ABSENT: Final = bodies.ABSENT
_astuple: Final = msgspec.structs.astuple
_CHAT_FIELDS: Final[int] = bodies.CHAT_FIELDS
_MESSAGES_ALONE: Final = bodies.MESSAGES_ALONE

_COMPLETION: Final[int] = IdKind.COMPLETION.value
_CHAT: Final[int] = IdKind.COMPLETION.value | IdKind.CHAT.value
_TOOLS: Final[int] = IdKind.TOOLS.value
_OPTIONS: Final[int] = IdKind.OPTIONS.value
_DIALECT: Final[int] = IdKind.DIALECT.value
_UNUSED_TOOLS: Final[int] = IdKind.UNUSED_TOOLS.value

# As vLLM (pydantic), "true" and 1 are taken for a boolean and "5" for a number: strict=False.
_DECODERS: Final[dict[Kind, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(body, strict=False) for kind, body in BODIES.items()
}
# Of each, the fields that stay raw and the others.
_NAMES: Final[dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    kind: (
        tuple(one.name for one in msgspec.structs.fields(body) if one.type is msgspec.Raw),
        tuple(one.name for one in msgspec.structs.fields(body) if one.type is not msgspec.Raw),
    )
    for kind, body in BODIES.items()
}
_encode: Final = msgspec.json.Encoder().encode
# The field that has the messages, of each kind; without it there is no prompt.
MESSAGES_FIELDS: Final = {Kind.CHAT: "messages", Kind.MESSAGES: "messages", Kind.RESPONSES: "input"}


def inspect(kind: Kind, body: bytes) -> Body:
    """Decode the body of a request. Raise RequestError 400."""
    try:
        parsed: Body = _DECODERS[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError | RecursionError):
            raise _unreadable(error) from None
        try:
            # vLLM accepts JSON that msgspec refuses.
            fields = json_values.fields(body)
        except (ValueError, RecursionError) as worse:
            raise _unreadable(worse) from None
        return inspect_fields(kind, fields)
    return _complete(kind, parsed)


def inspect_fields(kind: Kind, fields: Mapping[str, msgspec.Raw]) -> Body:
    """Decode a body whose fields are known. Raise RequestError 400."""
    try:
        parsed = _of_fields(kind, fields)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None
    return _complete(kind, parsed)


def _unreadable(error: Exception) -> RequestError:
    if isinstance(error, msgspec.ValidationError):
        said = f"A field has the wrong type: {error}."
        return RequestError(400, said, code="invalid_type", param=_path(error))
    nested = isinstance(error, RecursionError)
    said = "The body is nested too deeply." if nested else "The body is not valid JSON."
    return RequestError(400, said, code="invalid_json")


def _complete(kind: Kind, parsed: Body) -> Body:
    required = MESSAGES_FIELDS.get(kind)
    if required is not None and getattr(parsed, required) is _ABSENT:
        raise RequestError(
            400, f"The field `{required}` is required.", code="missing_field", param=required
        )
    if type(parsed) is not OtherBody and parsed.cache_salt:
        parsed.cache_salt = short_salt(parsed.cache_salt)
    return parsed


def _of_fields(kind: Kind, fields: Mapping[str, msgspec.Raw]) -> Body:
    """Raise ValueError."""
    raw_names, typed_names = _NAMES[kind]
    typed = {name: fields[name] for name in typed_names if name in fields}
    parsed: Body = _DECODERS[kind].decode(_encode(typed))
    for name in raw_names:
        if name in fields:
            setattr(parsed, name, fields[name])
    return parsed


def short_salt(given: str) -> str:
    """Return a cache_salt as it goes into keys and hashes: the same, unless it is long."""
    if len(given) <= _SALT_LIMIT_CHARS:
        return given
    # Longer than any salt that is kept unchanged, and so equal to none of them.
    digest = blake2b(given.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
    return given[:_SALT_LIMIT_CHARS] + digest


def goes_on_from(body: Body) -> str:
    """Return the stored response that the request continues; empty where there is none."""
    if type(body) is not ResponsesBody:
        return ""
    view = memoryview(body.previous_response_id)
    raw = bytes(view[:_NAME_LIMIT_BYTES])
    if raw in (b"", b"null"):
        return ""
    # Replicas refuse what is not a name.
    is_name = raw.startswith(b'"') and view.nbytes <= _NAME_LIMIT_BYTES
    return raw[1:-1].decode("utf-8", "replace") if is_name else " "


def _path(error: msgspec.ValidationError) -> str | None:
    """Return the top-level field a validation error names (`… - at `$.stream``)."""
    _, found, path = str(error).partition("`$.")
    return path.rstrip("`") if found else None


def is_ids(body: Prompted) -> bool:
    """Return whether a completion's prompt came as ids: [1, …] or [[1, …], …]."""
    if type(body) is not CompletionBody:
        return False
    head = bytes(memoryview(body.prompt)[:64])
    return head[:1] == b"[" and head.replace(b" ", b"").lstrip(b"[\n\r\t")[:1].isdigit()


def kinds_of(request: Prompted) -> int:
    """Return the IdKind bits that a request's ids rest on; 0 where the client sent the ids."""
    if type(request) is CompletionBody:
        return 0 if is_ids(request) else _COMPLETION
    if type(request) is ChatBody and _astuple(request)[1:_CHAT_FIELDS] == _MESSAGES_ALONE:
        return _CHAT
    found = _CHAT if request.tools is _ABSENT else _CHAT | _TOOLS
    if type(request) is ChatBody:
        if (
            request.chat_template_kwargs is not _ABSENT
            or request.reasoning_effort is not _ABSENT
            or request.documents is not _ABSENT
            or request.continue_final_message is not _ABSENT
            or request.add_generation_prompt is not _ABSENT
            or request.add_special_tokens is not _ABSENT
            or request.truncate_prompt_tokens is not _ABSENT
        ):
            found |= _OPTIONS
        if found & _TOOLS:
            choice = bytes(request.tool_choice)
            if choice == b'"none"' or b"\\" in choice:  # "none" can be spelled with escapes
                found |= _UNUSED_TOOLS
        return found
    found |= _DIALECT
    if type(request) is ResponsesBody:
        optional = request.reasoning is not _ABSENT or request.truncation is not _ABSENT
    else:
        optional = request.thinking is not _ABSENT or request.output_config is not _ABSENT
    if optional or request.chat_template_kwargs is not _ABSENT:
        found |= _OPTIONS
    return found
