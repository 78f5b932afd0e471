"""Errors as vLLM 0.32 writes them.

Invariants:
- The body is {"error": {"message", "type", "param", "code"}} with an integer code equal to the
  status; only unknown routes and wrong methods have the web framework's {"detail": ...}.
"""

import msgspec

from proxy.errors import RequestError, TokenlaneError


class _Info(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: int


class _Body(msgspec.Struct):
    error: _Info


class _Detail(msgspec.Struct):
    detail: str


_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class ReplicaError(TokenlaneError):
    """An answer instead of a result. kind: `error.type`."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """JSON, without a newline."""
        return msgspec.json.encode(_Body(_Info(self.message, self.kind, self.param, self.status)))


def detail(text: str) -> bytes:
    """The body for what the web framework refuses by itself."""
    return msgspec.json.encode(_Detail(text))


def from_tokens(error: RequestError) -> ReplicaError:
    """What the tokenizer refuses, as vLLM's own server says it."""
    return ReplicaError(error.message, status=error.status, param=error.param)


def validation(text: str, param: str | None = None) -> ReplicaError:
    """A body of the wrong shape."""
    return ReplicaError(f"1 validation error:\n  {text}", kind="Bad Request", param=param)


def unknown_model(served: str, asked: str) -> ReplicaError:
    """404."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return ReplicaError(message, status=404, kind="NotFoundError", param="model")


def too_long(limit_tokens: int, prompt_tokens: int) -> ReplicaError:
    """More prompt than context."""
    least = "at least " if prompt_tokens == limit_tokens + 1 else ""
    message = (
        f"This model's maximum context length is {limit_tokens} tokens. However, your prompt "
        f"contains {least}{prompt_tokens} input tokens, which exceeds this limit even without "
        "any output tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={prompt_tokens})"
    )
    return ReplicaError(message, param="input_tokens")


def no_output() -> ReplicaError:
    """A prompt that fills the context, or max_tokens 0."""
    message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    return ReplicaError(message, param="max_tokens")


def busy() -> ReplicaError:
    """The queue limit."""
    message = (
        "The engine is currently busy and cannot accept new requests. Please try again later or "
        "on a different instance."
    )
    return ReplicaError(message, status=503, kind="Service Unavailable")


def engine_dead() -> ReplicaError:
    """A dead engine core."""
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ReplicaError(message, status=500, kind="InternalServerError")


def made(status: int, message: str) -> ReplicaError:
    """Any status, for a failure switch."""
    return ReplicaError(message, status=status, kind=_PHRASES.get(status, "Error"))
