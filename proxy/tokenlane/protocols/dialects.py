"""The dialects that are served, as far as they differ outside their bodies: errors, and the names
of the events that begin, end and break off a stream. Pure.

Invariants:
- What a client sees of a failure is in the shape that its library raises as an error.
- A message never repeats bytes of a request body, a header or a secret.
"""

import json
from enum import Enum
from typing import Final

from tokenlane.errors import RequestError, error_body, server_error


class Dialect(Enum):
    """The dialect of a path's answers. Each is an error format of the HTTP server."""

    CHAT = "chat"  # OpenAI's chats and completions, and vLLM's own paths
    MESSAGES = "messages"  # Anthropic's
    RESPONSES = "responses"  # OpenAI's later ones

    @property
    def request_id_field(self) -> bytes:
        """The name of a header that carries the request's id beside `x-request-id`; b"" for
        none."""
        return b"request-id" if self is Dialect.MESSAGES else b""

    def error_json(self, error: RequestError, request_id: bytes) -> bytes:
        """Return the body of the answer to a request that cannot be served."""
        if self is not Dialect.MESSAGES:
            return error_body(error.message, error.kind, param=error.param, code=error.code)
        other = "invalid_request_error" if error.status < 500 else "api_error"
        told = {"type": _TYPES.get(error.status, other), "message": error.message}
        return _json({"type": "error", "error": told, "request_id": request_id.decode("ascii")})


REPLICA_FAILED: Final = server_error(
    502, "The replica failed while it was answering.", "upstream_failed"
)
GATEWAY_STOPPED: Final = server_error(
    503, "The gateway stopped before the answer was whole.", "gateway_stopped"
)
_ANTHROPIC: Final = "/v1/messages"
_RESPONSES: Final = "/v1/responses"
# Anthropic's error types; the class of the status decides for other statuses.
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Types of errors that are the client's fault.
CLIENT_ERRORS: Final = {
    "invalid_request_error",
    *(kind for status, kind in _TYPES.items() if status < 500),
}


def dialect_of(path: str) -> Dialect:
    """Return the dialect of a path."""
    if path.startswith(_ANTHROPIC):
        return Dialect.MESSAGES
    return Dialect.RESPONSES if path.startswith(_RESPONSES) else Dialect.CHAT


def as_messages_error(status: int, body: bytes, request_id: bytes) -> bytes:
    """Return a replica's error in Anthropic's shape, where it is JSON in another: vLLM refuses some
    requests before it knows of dialects."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(told, dict) or told.get("type") == "error":
        return body
    error = told.get("error", told.get("detail"))
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        message = f"The replica answered with status {status}."
    return Dialect.MESSAGES.error_json(RequestError(status, message), request_id)


def broken_off(dialect: Dialect, why: RequestError, request_id: bytes, events: int) -> bytes:
    """Return the event that ends a stream before its end. events: that came before it."""
    if dialect is Dialect.CHAT:
        return b"data: %b\n\n" % dialect.error_json(why, request_id)
    if dialect is Dialect.MESSAGES:
        return b"event: error\ndata: %b\n\n" % dialect.error_json(why, request_id)
    # The outer fields are the event's; openai-python raises by the nested ones.
    told = {"message": why.message, "param": None, "code": why.code}
    nested = {**told, "type": why.kind}
    event = {"type": "error", **told, "sequence_number": events, "error": nested}
    return b"event: error\ndata: %b\n\n" % _json(event)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
