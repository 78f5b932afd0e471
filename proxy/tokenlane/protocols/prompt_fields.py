"""The values of the fields that decide a prompt's ids, made of raw JSON.

Invariants:
- Nothing is parsed before a cache has been asked; an absent field is an empty slice.
- What is not read here as vLLM would is `Unrenderable`.
"""

from itertools import chain
from typing import Any, Final

import msgspec

from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import ChatFields
from tokenlane.protocols.json_values import FEW_BYTES, are_few

# Templates print tools and arguments indented, and each level indents all that is within it. No
# schema of a tool comes near.
_MOST_LEVELS: Final = 32
_NESTED: Final = frozenset((dict, list))


def value(raw: msgspec.Raw) -> Any:
    """As `decoded`, and raise Unrenderable("json") for what is nested deeply, too."""
    made = decoded(raw)
    # Shorter ones have no room for so many pairs of brackets.
    if memoryview(raw).nbytes > 2 * _MOST_LEVELS and is_deep(made):
        raise Unrenderable("json")
    return made


def is_deep(made: Any) -> bool:
    """Return whether lists and objects are nested in more levels than are rendered here."""
    level = [made]
    for _ in range(_MOST_LEVELS + 1):
        # The last level, mostly all texts or all ids, is looked at without bytecode for each.
        if _NESTED.isdisjoint(map(type, level)):
            return False
        nested = [one for one in level if type(one) in _NESTED]
        level = list(
            chain.from_iterable(one.values() if type(one) is dict else one for one in nested)
        )
    return True


def decoded(raw: msgspec.Raw) -> Any:
    """Return the JSON value of a slice, None if it is absent; for callers that see to its nesting.
    Raise Unrenderable("json") for what only other parsers accept (NaN, numbers out of range,
    nesting past the recursion limit, halves of surrogate pairs) and for more values than are made
    here, and RequestError 400 for what is not UTF-8, which no parser accepts."""
    size_bytes = memoryview(raw).nbytes
    if not size_bytes:
        return None
    if size_bytes > FEW_BYTES and not are_few(bytes(raw)):
        raise Unrenderable("json")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise Unrenderable("json") from None
    except UnicodeDecodeError:
        raise _not_unicode(raw) from None


def _not_unicode(raw: msgspec.Raw) -> RequestError | Unrenderable:
    try:
        bytes(raw).decode("utf-8", "surrogatepass")  # as Python's json, by which vLLM reads bodies
    except UnicodeDecodeError:
        return RequestError(400, "The body is not valid UTF-8.", code="invalid_unicode")
    return Unrenderable("json")


def flag(raw: msgspec.Raw, default: bool) -> bool:
    """Return a boolean field. Spellings that vLLM would convert or refuse ("true", 1, null) raise
    Unrenderable."""
    if not len(raw):
        return default
    given = value(raw)
    if given is True or given is False:
        return bool(given)
    raise Unrenderable("field-shape")


def may_hold_ids(params: msgspec.Raw) -> bool:
    """Return whether these kv_transfer_params may hold ids, which a replica takes instead of the
    prompt. JSON names can be spelled with escapes, so where there is any, they may."""
    raw = bytes(params)
    return b"prompt_token_ids" in raw or b"\\" in raw


def refuse_overrides(request: ChatFields) -> None:
    """Raise Unrenderable where a chat brings its own template, or ids that count instead of it."""
    # vLLM refuses a request's template unless told to trust it, which the gateway cannot see.
    if value(request.chat_template) is not None:
        raise Unrenderable("request-template")
    # The replica takes forwarded ids instead of the messages.
    if may_hold_ids(request.kv_transfer_params):
        raise Unrenderable("forwarded-ids")


def truncation(limit: msgspec.Raw, side: msgspec.Raw) -> tuple[int, str | None] | None:
    """Return tokens to keep and the side cut off ("left", "right" or unsaid); None: no truncation.

    Raise Unrenderable for -1, which stands for the replica's context length, and for shapes
    that vLLM refuses.
    """
    keep = value(limit)
    where = value(side)
    if where not in (None, "left", "right"):
        raise Unrenderable("truncation")
    if keep is None:
        return None
    if type(keep) is not int or keep < 1:
        raise Unrenderable("truncation")
    return keep, where


def documents(raw: msgspec.Raw) -> list[dict[str, str]] | None:
    """Return the documents of a chat. Raise Unrenderable."""
    given = value(raw)
    if given is None:
        return None
    try:
        return msgspec.convert(given, list[dict[str, str]], strict=True)
    except msgspec.ValidationError:
        raise Unrenderable("field-shape") from None


def are_objects(given: Any) -> bool:
    """Return whether it is nothing, or a list of objects."""
    return given is None or (
        isinstance(given, list) and all(isinstance(one, dict) for one in given)
    )
