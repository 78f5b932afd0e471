"""Request bodies, read only as far as routing needs: a few typed fields, the rest as raw slices.

Invariants:
- The body is forwarded as it came; nothing here builds a new one.
- Fields that change ids stay raw JSON and are hashed as bytes, so a cache hit needs neither a
  parse of the messages nor a render.
- Whatever the bytes are, the outcome is a Request or a RequestError 400, and its message names
  the field, never its value.
"""

from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec
import xxhash

from proxy.errors import RequestError
from proxy.tokens.fields import ABSENT, ChatFields, CompletionFields


class Kind(StrEnum):
    """What a generation endpoint's prompt is made of."""

    CHAT = "chat"
    COMPLETION = "completion"
    OTHER = "other"


class ChatBody(ChatFields):
    """A chat request: what decides its ids, and what decides its way."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str | None = None


class CompletionBody(CompletionFields):
    """A completion request."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None


class OtherBody(msgspec.Struct):
    """A request to an endpoint that is passed through."""

    model: str | None = None
    stream: bool | None = None


Body = ChatBody | CompletionBody | OtherBody

# As vLLM (pydantic), "true" and 1 are taken for a boolean and "5" for a number: strict=False.
_DECODERS: dict[Kind, msgspec.json.Decoder[Any]] = {
    Kind.CHAT: msgspec.json.Decoder(ChatBody, strict=False),
    Kind.COMPLETION: msgspec.json.Decoder(CompletionBody, strict=False),
    Kind.OTHER: msgspec.json.Decoder(OtherBody, strict=False),
}
_CHAT_FIELDS = len(ChatFields.__struct_fields__)
_COMPLETION_FIELDS = len(CompletionFields.__struct_fields__)
_CHAT_ABSENT = (ABSENT,) * (_CHAT_FIELDS - 1)
_COMPLETION_ABSENT = (ABSENT,) * (_COMPLETION_FIELDS - 1)


def inspect(kind: Kind, body: bytes) -> Body:
    """The body of a request; raises RequestError 400."""
    try:
        parsed: Body = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(
            400, f"A field has the wrong type: {error}.", code="invalid_type", param=_path(error)
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError(400, "The body is not valid JSON.", code="invalid_json") from None
    except RecursionError:
        raise RequestError(400, "The body is nested too deeply.", code="invalid_json") from None
    if isinstance(parsed, ChatBody) and parsed.messages is ABSENT:
        raise RequestError(
            400, "The field `messages` is required.", code="missing_field", param="messages"
        )
    return parsed


def _path(error: msgspec.ValidationError) -> str | None:
    """The top-level field a validation error names (`… - at `$.stream``)."""
    _, found, path = str(error).partition("`$.")
    return path.rstrip("`") if found else None


def token_key(model: str, body: ChatBody | CompletionBody) -> bytes:
    """A digest of everything that decides the prompt's ids and block hashes (16 bytes)."""
    chat = isinstance(body, ChatBody)
    # The fields that decide ids come first, in the order of the base struct; the first of them
    # is the prompt itself, and mostly the only one.
    values = msgspec.structs.astuple(body)
    others = values[1 : _CHAT_FIELDS if chat else _COMPLETION_FIELDS]
    hasher = xxhash.xxh3_128(values[0])
    apart = salt(model, body)
    hasher.update(b"%d:%d:%b" % (chat, len(apart), apart))
    if others != (_CHAT_ABSENT if chat else _COMPLETION_ABSENT):
        for position, raw in enumerate(others):
            if raw is not ABSENT:
                view = memoryview(raw)
                hasher.update(b"%d:%d:" % (position, view.nbytes))
                hasher.update(view)
    return hasher.digest()


def salt(model: str, body: ChatBody | CompletionBody) -> bytes:
    """What keeps this prompt's blocks apart from equal ones: the model, and vLLM's cache_salt."""
    if not body.cache_salt:
        return _plain_salt(model)
    return f"{model}\0{body.cache_salt}".encode("utf-8", "surrogatepass")


@lru_cache(maxsize=256)
def _plain_salt(model: str) -> bytes:
    return f"{model}\0".encode("utf-8", "surrogatepass")


def prompt_bytes(body: ChatBody | CompletionBody) -> memoryview:
    """The raw JSON of the prompt itself: its size predicts the work, its head names a prefix."""
    return memoryview(body.messages if isinstance(body, ChatBody) else body.prompt)
