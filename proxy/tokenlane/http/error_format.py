"""How a server writes errors to its clients. Whoever makes the server chooses the format by path.

Invariants:
- A format only renders; status, headers and the fate of the connection are the error's own.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tokenlane.errors import RequestError, error_body


class ErrorFormat(Protocol):
    """The shape in which the clients of a path expect errors."""

    @property
    def request_id_field(self) -> bytes:
        """The name of a header that carries the request's id beside `x-request-id`; b"" for
        none."""
        ...

    def error_json(self, error: RequestError, request_id: bytes) -> bytes:
        """Return the body of the answer to a request that cannot be served."""
        ...


class OpenAIErrors:
    """OpenAI's shape."""

    request_id_field: Final = b""

    def error_json(self, error: RequestError, request_id: bytes) -> bytes:
        """Return the body, as ErrorFormat does."""
        return error_body(error.message, error.kind, param=error.param, code=error.code)


# Returns the format for a path. Called once for each new request head.
ErrorFormatOf = Callable[[str], ErrorFormat]

_OPENAI = OpenAIErrors()


def openai_errors(_path: str) -> ErrorFormat:
    """Return OpenAI's shape for every path."""
    return _OPENAI
