"""Request bodies, as far as a replica looks at them.

Invariants:
- Decoding never raises anything but ReplicaError, in the words of vLLM's 400s.
- Fields that decide ids stay raw until somebody tokenizes them.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from tokenlane.protocols.dialects import Dialect
from tokenlane.simulator import vllm_errors

ABSENT = msgspec.Raw(b"")
_Count = Annotated[int, msgspec.Meta(le=16_384)]


class StreamOptions(msgspec.Struct):
    """stream_options."""

    include_usage: bool | None | msgspec.UnsetType = msgspec.UNSET
    continuous_usage_stats: bool | None | msgspec.UnsetType = msgspec.UNSET

    @property
    def given(self) -> bool:
        """Whether the object names any of them."""
        return not (
            self.include_usage is msgspec.UNSET and self.continuous_usage_stats is msgspec.UNSET
        )


class Body(msgspec.Struct):
    """The fields that chats and completions share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: _Count | None = 1
    seed: int | None = None
    temperature: float | None = None
    return_token_ids: bool | None = False
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    request_id: str | None = None
    add_special_tokens: bool | None = None
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    encoding_format: str | None = "float"
    dimensions: int | None = None
    tokens: msgspec.Raw = ABSENT
    return_token_strs: bool | None = False
    kv_transfer_params: dict[str, Any] | None = None
    # Of OpenAI's responses.
    max_output_tokens: int | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    previous_response_id: str | None = None


# Lax as vLLM's own models are: "3" is 3.
_decoder = msgspec.json.Decoder(Body, strict=False)


def decode(body: bytes, models: Sequence[str], dialect: Dialect = Dialect.CHAT) -> Body:
    """Return the body of a request to one of these models."""
    try:
        decoded = _decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.strip("`.")
        raise vllm_errors.validation(text, f"body.{field}" if field else "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _not_json(body) from None
    if dialect is not Dialect.CHAT:
        # These models ignore the fields of other dialects.
        decoded.n, decoded.stream_options, decoded.return_token_ids = 1, None, False
    if dialect is Dialect.MESSAGES:
        _check_message(decoded)
    options = decoded.stream_options
    if options is not None and options.given and not decoded.stream:
        text = "Stream options can only be defined when `stream=True`."
        raise vllm_errors.parameter(text, "stream_options")
    if decoded.cache_salt == "":
        text = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise vllm_errors.parameter(text, "cache_salt")
    check_model(decoded, models)
    if decoded.temperature is not None and decoded.temperature < 0:
        given = decoded.temperature
        text = f"temperature must be non-negative, got {given}."
        raise vllm_errors.parameter(text, "temperature", given)
    if decoded.n is not None and decoded.n < 1:
        raise vllm_errors.ReplicaError(f"n must be at least 1, got {decoded.n}.")
    return decoded


def check_model(decoded: Body, models: Sequence[str]) -> None:
    """Check that a model that is named is one of these."""
    if decoded.model and decoded.model not in models:
        raise vllm_errors.unknown_model(models[0], decoded.model)


def _check_message(decoded: Body) -> None:
    """Check the types of a body in Anthropic's dialect."""
    if decoded.model is None:
        raise vllm_errors.missing("body.model", "<dict of items>")
    if not decoded.model:
        raise vllm_errors.validation("Value error, Model is required", "body.model")
    if decoded.cache_salt == "":
        text = "String should have at least 1 character"
        raise vllm_errors.validation(text, "body.cache_salt")


def check_output(decoded: Body) -> None:
    """Check what Anthropic's dialect needs to generate an answer."""
    if decoded.max_tokens is None:
        raise vllm_errors.missing("body.max_tokens", "<dict of items>")
    if decoded.max_tokens <= 0:
        raise vllm_errors.validation("Value error, max_tokens must be positive", "body.max_tokens")


def check_input(raw: msgspec.Raw) -> None:
    """Check the type of a response's input."""
    if bytes(required(raw, "input")).lstrip()[:1] not in (b'"', b"["):
        raise vllm_errors.validation("Input should be a valid string", "body.input")


def _not_json(body: bytes) -> vllm_errors.ReplicaError | vllm_errors.Unparsable:
    """Return the error of the standard library's parser for a body that is not JSON."""
    if not body:
        return vllm_errors.missing("body", "None")
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        field = f"body.{error.pos}"
        text = (
            f"{{'type': 'json_invalid', 'loc': '{field}', 'msg': 'JSON decode error', "
            f"'input': '<dict of 0 items>', 'ctx': {{'error': {error.msg!r}}}}}"
        )
        return vllm_errors.validation(text, field)
    except (UnicodeDecodeError, RecursionError):
        return vllm_errors.Unparsable()
    return vllm_errors.validation("Input should be a finite number", "body")


def required(raw: msgspec.Raw, name: str) -> msgspec.Raw:
    """Return a field that must be there."""
    if not memoryview(raw).nbytes:
        raise vllm_errors.missing(f"body.{name}", "<dict of items>")
    return raw


def check_messages(raw: msgspec.Raw) -> None:
    """Check the type of a chat's messages."""
    if not bytes(required(raw, "messages")).lstrip().startswith(b"["):
        text = (
            "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}"
        )
        raise vllm_errors.validation(text, "body.messages")


def check_prompt(raw: msgspec.Raw) -> None:
    """Check that a completion's prompt is present and not empty."""
    value = bytes(raw).strip()
    if value in (b"", b'""', b"null"):
        text = "Either prompt or prompt_embeds must be provided and non-empty."
        raise vllm_errors.parameter(text, "prompt")
    if value[:1] not in (b'"', b"["):
        raise vllm_errors.validation("Input should be a valid string", "body.prompt")
    if value[:1] == b"[" and not value[1:-1].strip():
        raise vllm_errors.ReplicaError("You must pass at least one prompt")
