"""Errors as vLLM 0.32 writes them.

Invariants:
- The body is {"error": {"message", "type", "param", "code"}} with an integer code equal to the
  status; only unknown routes and wrong methods have the web framework's {"detail": ...}.
"""

from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from http.client import responses

import msgspec

from tokenlane.errors import RequestError, TokenlaneError
from tokenlane.protocols import context_window
from tokenlane.protocols.dialects import Dialect

_MALFORMED = HTTPStatus.BAD_REQUEST.phrase


@dataclass(eq=False)
class ReplicaError(TokenlaneError):
    """An answer instead of a result. kind: `error.type`."""

    message: str
    _: KW_ONLY
    status: int = 400
    kind: str = "BadRequestError"
    param: str | None = None

    def body(self, dialect: Dialect = Dialect.CHAT) -> bytes:
        """Return JSON, without a newline. Bodies of the wrong shape are refused before vLLM knows
        of dialects."""
        if dialect is Dialect.MESSAGES and self.kind != _MALFORMED:
            error = {"type": self.kind, "message": self.message}
            return msgspec.json.encode({"type": "error", "error": error})
        info = {"message": self.message, "type": self.kind}
        return msgspec.json.encode({"error": {**info, "param": self.param, "code": self.status}})


class Unparsable(ReplicaError):
    """A body that is not text: the web framework's own answer."""

    def __init__(self) -> None:
        super().__init__("There was an error parsing the body")

    def body(self, dialect: Dialect = Dialect.CHAT) -> bytes:
        """Return JSON, without a newline."""
        return detail(self.message)


def detail(text: str) -> bytes:
    """Return the body for what the web framework refuses by itself."""
    return msgspec.json.encode({"detail": text})


def from_tokens(error: RequestError) -> ReplicaError:
    """Return what the tokenizer refuses; vLLM's template and tokenizer errors name no field."""
    if error.param == "prompt":
        return validation("Input should be a valid list", "body.prompt")
    return ReplicaError(error.message, status=error.status)


def unrenderable(model: str, reason: str) -> ReplicaError:
    """Return what a text-only server, or this simulation of one, cannot render."""
    if reason == "multimodal":
        return ReplicaError(f"{model} is not a multimodal model")
    return ReplicaError(f"The simulated replica cannot render this request ({reason}).")


def parameter(text: str, name: str, value: float | None = None) -> ReplicaError:
    """Return the error for a field whose value vLLM itself checks."""
    extra = f"parameter={name}" if value is None else f"parameter={name}, value={value}"
    return ReplicaError(f"{text} ({extra})", param=name)


def missing(where: str, given: str) -> ReplicaError:
    """Return the error for a required field that is missing."""
    text = f"{{'type': 'missing', 'loc': '{where}', 'msg': 'Field required', 'input': '{given}'}}"
    return validation(text, where)


def validation(text: str, param: str | None = None) -> ReplicaError:
    """Return the error for a body of the wrong shape."""
    return ReplicaError(f"1 validation error:\n  {text}", kind=_MALFORMED, param=param)


def unknown_model(served: str, asked: str) -> ReplicaError:
    """404."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return ReplicaError(message, status=404, kind="NotFoundError", param="model")


def too_long(limit_tokens: int, prompt_tokens: int, *, cut: bool) -> ReplicaError:
    """Return the error for a prompt over the context; see
    `tokenlane.protocols.context_window.too_long`."""
    error = context_window.too_long(limit_tokens, prompt_tokens, cut=cut)
    return ReplicaError(error.message, param=error.param)


def no_output(asked_tokens: int) -> ReplicaError:
    """Return the error for a prompt that fills the context, or max_tokens below 1."""
    text = f"max_tokens must be at least 1, got {asked_tokens}."
    return parameter(text, "max_tokens", asked_tokens)


def too_much_output(limit_tokens: int, asked_tokens: int, name: str = "max_tokens") -> ReplicaError:
    """Return the error for more output than context. name: of the field that asks for it."""
    text = (
        f"{name}={asked_tokens} cannot be greater than max_model_len={limit_tokens}. "
        "Please request fewer output tokens."
    )
    return parameter(text, name, asked_tokens)


def no_room(limit_tokens: int, prompt_tokens: int) -> ReplicaError:
    """Return the error for a response whose prompt fills the context."""
    text = (
        f"The engine prompt length {prompt_tokens} exceeds the max_model_len {limit_tokens}. "
        "Please reduce prompt."
    )
    return ReplicaError(text, kind="invalid_request_error", param="input")


def unknown_response(name: str) -> ReplicaError:
    """Return the 404 for a response that does not exist, or is on another server."""
    text = f"Response with id '{name}' not found."
    return ReplicaError(text, status=404, kind="invalid_request_error", param="response_id")


def not_cancelled() -> ReplicaError:
    """Return the error for a response that was not made in the background."""
    text = "Cannot cancel a synchronous response."
    return ReplicaError(text, kind="invalid_request_error", param="response_id")


def busy() -> ReplicaError:
    """Return the error for a full queue."""
    message = (
        "The engine is currently busy and cannot accept new requests. Please try again later or "
        "on a different instance."
    )
    return ReplicaError(message, status=503, kind="Service Unavailable")


def engine_dead() -> ReplicaError:
    """Return the error for a dead engine core."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ReplicaError(message, status=500, kind="InternalServerError")


def made(status: int, message: str) -> ReplicaError:
    """Return an error with any status, for a failure switch."""
    return ReplicaError(message, status=status, kind=responses.get(status, "Error"))
