"""What the gateway reads of an answer, or of one event of it: usage and finish reasons.

Invariants:
- Reading never raises: what is not an answer is None.
- Whatever a dialect calls them, tokens are counted as OpenAI's chats do: a prompt's with those that
  came from a cache.
- Counts that no answer can have are no usage: metrics take neither negative nor endless numbers.
"""

import re
from typing import Final, TypeVar

import msgspec

from tokenlane.errors import UNREADABLE, blames_replica
from tokenlane.protocols.dialects import CLIENT_ERRORS, Dialect
from tokenlane.relay.answer_fields import (
    AnswerUsage,
    Choice,
    Error,
    Message,
    MessageUsage,
    PromptTokensDetails,
    Response,
    Said,
    SaidChoice,
    Typed,
    Usage,
)

_T = TypeVar("_T")
_HEAD_BYTES: Final = 512
_COUNT_BITS: Final = 53
_NAME: Final = re.compile(rb'\{\s*"id"\s*:\s*"([A-Za-z0-9_.:-]{1,256})"')


_decode_answer: Final = msgspec.json.Decoder(AnswerUsage)
_decode_said: Final = msgspec.json.Decoder(Said)
_decode_message: Final = msgspec.json.Decoder(Message)
_decode_response: Final = msgspec.json.Decoder(Response)
_decode_typed: Final = msgspec.json.Decoder(Typed)
_decode_error: Final = msgspec.json.Decoder(Error)
_ABORTED: Final = [Choice("abort")]


def read_answer(body: bytes, dialect: Dialect = Dialect.CHAT) -> AnswerUsage | None:
    """Return a JSON answer's usage and finish reasons, or None where it is not one."""
    if dialect is Dialect.MESSAGES:
        message = _read(_decode_message, body)
        if message is None:
            return None
        # vLLM gives no finish reason where it stopped for reasons of its own.
        aborted = message.type == "message" and message.stop_reason is None
        return AnswerUsage(_message_usage(message.usage, None), _ABORTED if aborted else [])
    if dialect is Dialect.RESPONSES:
        return read_response(body)
    answer = _read(_decode_answer, body)
    if answer is not None and answer.usage is not None:
        answer.usage = _possible(answer.usage)
    return answer


def cached_tokens_of(usage: Usage) -> int | None:
    """Return the prompt's tokens that the replica found in its cache; None where it does not
    say."""
    details = usage.prompt_tokens_details
    return details.cached_tokens if details is not None else None


def is_aborted(answer: AnswerUsage) -> bool:
    """Return whether vLLM stopped for reasons of its own, which it calls `abort`."""
    return any(choice.finish_reason == "abort" for choice in answer.choices)


def _possible(usage: Usage) -> Usage | None:
    """Return a usage whose counts an answer can have, None for any other."""
    counts = usage.prompt_tokens | (usage.completion_tokens or 0)
    details = usage.prompt_tokens_details
    if details is not None:
        counts |= details.cached_tokens or 0
    # One test for all: the bits of a negative number never end.
    return None if counts >> _COUNT_BITS else usage


def says_something(body: bytes) -> bool:
    """Return whether a completion (or one of its chunks) carries output of any kind; also where
    that cannot be read."""
    said = _read(_decode_said, body)
    return said is None or any(map(_carries, said.choices))


def _carries(choice: SaidChoice) -> bool:
    parts = {**(choice.delta or {}), **(choice.message or {})}
    parts.pop("role", None)
    return bool(choice.text or choice.token_ids or any(parts.values()))


def read_response(body: bytes) -> AnswerUsage | None:
    """As `read_answer`, of a response or of the event that carries one."""
    made = _read(_decode_response, body)
    if made is None:
        return None
    made = made.response or made
    usage = None
    if made.usage is not None:
        given = made.usage
        details = given.input_tokens_details or PromptTokensDetails()
        usage = _possible(Usage(given.input_tokens, given.output_tokens, details))
    return AnswerUsage(usage, _ABORTED if made.status in ("cancelled", "failed") else [], made.id)


def named_at_head(head: bytes) -> str | None:
    """Return the name of a response (or of that in an event) that is too long to read, by its first
    bytes: vLLM says it first."""
    found = _NAME.search(head, 0, _HEAD_BYTES)
    return found[1].decode("ascii") if found is not None else None


def read_message_usage(start: bytes, end: bytes) -> Usage | None:
    """Return the usage of a streamed message, from its first event and its last."""
    first, last = _read(_decode_message, start), _read(_decode_message, end)
    begun = first.message.usage if first is not None and first.message is not None else None
    return _message_usage(last.usage if last is not None else None, begun)


def stopped(data: bytes) -> bool:
    """Return whether a `message_delta` says why the message ends."""
    event = _read(_decode_message, data)
    return event is not None and event.delta is not None and event.delta.stop_reason is not None


def is_clients_fault(data: bytes) -> bool:
    """Return whether an error event says what a whole answer says by its status: that the client
    did something wrong."""
    told = _read(_decode_error, data)
    if told is None:
        return False
    told = told.error or told
    if isinstance(told.code, int):
        return told.code >= 400 and not blames_replica(told.code)
    return told.type in CLIENT_ERRORS


def type_of(data: bytes) -> bytes:
    """Return the `type` of an event's data; empty where it has none."""
    event = _read(_decode_typed, data)
    return event.type.encode() if event is not None else b""


def _message_usage(usage: MessageUsage | None, begun: MessageUsage | None) -> Usage | None:
    """Return a message's usage. begun: the usage at its start; some servers report only the rest at
    its end."""
    source = begun if usage is None or usage.input_tokens is None else usage
    if source is None:
        return None
    cached = source.cache_read_input_tokens
    parts = (source.input_tokens, cached, source.cache_creation_input_tokens)
    output = (usage or source).output_tokens
    return _possible(Usage(sum(part or 0 for part in parts), output, PromptTokensDetails(cached)))


def _read(decoder: "msgspec.json.Decoder[_T]", body: bytes) -> _T | None:
    try:
        return decoder.decode(body)
    except UNREADABLE:
        return None
