"""Request bodies, as far as a replica looks at them.

Invariants:
- Decoding never raises anything but ReplicaError, in the words of vLLM's 400s.
- Fields that decide ids stay raw until somebody tokenizes them.
"""

from typing import Annotated, Any

import msgspec

from proxy.simulator import vllm_errors

ABSENT = msgspec.Raw(b"")
_Count = Annotated[int, msgspec.Meta(ge=1, le=16_384)]


class StreamOptions(msgspec.Struct):
    """stream_options."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Body(msgspec.Struct):
    """What chat and completions share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: _Count | None = 1
    seed: int | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    return_token_ids: bool | None = False
    ignore_eos: bool | None = False
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
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


_decoder = msgspec.json.Decoder(Body)


def decode(body: bytes, model: str) -> Body:
    """The body of a request to the model served as `model`."""
    try:
        decoded = _decoder.decode(body)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        field = path.strip("`.") or None
        raise vllm_errors.validation(text, f"body.{field}" if field else "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = "{'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}"
        raise vllm_errors.validation(text, "body.0") from None
    if decoded.stream_options is not None and not decoded.stream:
        raise vllm_errors.validation(
            "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    if decoded.model and decoded.model != model:
        raise vllm_errors.unknown_model(model, decoded.model)
    return decoded


def required(raw: msgspec.Raw, name: str) -> msgspec.Raw:
    """A field that must be there."""
    if not memoryview(raw).nbytes:
        text = f"{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required'}}"
        raise vllm_errors.validation(text, f"body.{name}")
    return raw
