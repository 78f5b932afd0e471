"""The fields of answers and of their events, in each dialect, that the gateway reads: as msgspec
decodes them.

Invariants:
- Whatever is absent has a default: what is decoded is a whole answer, an event of one, or neither.
"""

from typing import Any

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """OpenAI's prompt_tokens_details."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's usage, as far as it is compared with the gateway's own counts."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class Choice(msgspec.Struct):
    finish_reason: str | None = None


class AnswerUsage(msgspec.Struct):
    """The part of a completion (or of one of its chunks) that the gateway reads."""

    usage: Usage | None = None
    choices: list[Choice] = []
    id: str | None = None


class SaidChoice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    token_ids: list[int] | None = None


class Said(msgspec.Struct):
    """The output that the choices of a completion, or of one of its chunks, carry."""

    choices: list[SaidChoice] = []


class MessageUsage(msgspec.Struct):
    """Anthropic's: the prompt's tokens in three parts."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Delta(msgspec.Struct):
    stop_reason: str | None = None


class Message(msgspec.Struct):
    """A message, or an event of one (then its usage is in `message`, its end in `delta`)."""

    type: str = ""
    stop_reason: str | None = None
    usage: MessageUsage | None = None
    message: "Message | None" = None
    delta: Delta | None = None


class ResponseUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int | None = None
    input_tokens_details: PromptTokensDetails | None = None


class Response(msgspec.Struct):
    """A response, or the event that carries one."""

    id: str | None = None
    status: str | None = None
    usage: ResponseUsage | None = None
    response: "Response | None" = None


class Typed(msgspec.Struct):
    type: str = ""


class Error(msgspec.Struct):
    """An error, or the event that carries one."""

    code: int | str | None = None
    type: str | None = None
    error: "Error | None" = None
