"""Errors, named by who is to blame. Those that a client gets carry the HTTP status.

Invariants:
- A message never repeats bytes of a request body, a header or a secret, but for the name of a
  model that nobody serves, where it is short and printable.
- Everything a client sees is rendered by `error_body`, in OpenAI's shape.
- Not knowing a prompt's ids is `Unrenderable`, which no client sees: the request is sent as text,
  and the replica decides.
"""

import json
from dataclasses import KW_ONLY, dataclass

# What decoding the bytes of others raises. msgspec's errors and those of UTF-8 are ValueErrors;
# brackets in brackets and numbers beyond the machine's raise the rest.
UNREADABLE = (ValueError, RecursionError, OverflowError)


class TokenlaneError(Exception):
    """Base of all errors made on purpose; anything else that escapes is a bug."""


class Unrenderable(TokenlaneError):
    """The gateway cannot make the ids. `reason`: closed set of words, used as a metric label:

    multimodal content-part message-shape tool-shape field-shape json template-kwargs
    request-template own-renderer no-chat-template forwarded-ids truncation suffix stored-response
    several-prompts no-tokenizer other-count replica-full replica-late replica-failed
    replica-refused uncut failed
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ConfigError(TokenlaneError):
    """The operator's settings are wrong. The message is one sentence with the next step."""

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each mistake."""
        return [str(self)]


class ConfigProblems(ConfigError):
    """Several mistakes; the message is the first one's. problems: at least one sentence."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - 1
        tail = f" (and {more} more: tokenlane check-config names them all)" if more else ""
        super().__init__(problems[0] + tail)
        self._problems = problems

    @property
    def problems(self) -> list[str]:
        return self._problems


@dataclass(eq=False, repr=False)
class RequestError(TokenlaneError):
    """The request cannot be served, and this is the answer to it.

    status: HTTP status. kind: OpenAI `error.type`. code: stable machine word, or vLLM's number.
    param: the offending field. retry_after_s: sent as `Retry-After`, in whole seconds.
    close: the connection cannot be used any further (framing is lost).
    """

    status: int
    message: str
    _: KW_ONLY
    kind: str = "invalid_request_error"
    code: str | int | None = None
    param: str | None = None
    retry_after_s: int | None = None
    close: bool = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __post_init__(self) -> None:
        super().__init__(self.message)

    def copy(self) -> "RequestError":
        """Return the same, to be raised where this one is kept: raised itself, it would keep the
        frames that refer to it, and everything in them, until the garbage collector runs."""
        made = RequestError(self.status, self.message)
        made.__dict__.update(self.__dict__)
        return made


def server_error(
    status: int, message: str, code: str, *, retry_after_s: int | None = None, close: bool = False
) -> RequestError:
    """Return an error that is no fault of the request."""
    return RequestError(
        status, message, kind="server_error", code=code, retry_after_s=retry_after_s, close=close
    )


INTERNAL = server_error(500, "Internal error.", "internal")


def blames_replica(status: int) -> bool:
    """Return whether an answer of this status is the replica's fault: 501 and 505 are for what the
    client asks, as 4xx are."""
    return status >= 500 and status not in (501, 505)


class UpstreamError(TokenlaneError):
    """A replica failed. `sent`: request bytes may have reached it, so the request may have run.

    reason: closed set of words, used as a metric label:
    refused unreachable connect_timeout closed reset first_byte_timeout chunk_timeout protocol
    truncated.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | int | None = None
) -> bytes:
    """Return the JSON body of an error in OpenAI's shape (openai-python reads all four fields)."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, separators=(",", ":")).encode()
