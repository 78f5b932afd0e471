"""Message heads, parsed once: a keep-alive peer sends the same head again and again.

Invariants:
- A remembered head gives exactly what parsing it again would give. It is found by all of its
  bytes, or by all but the value of its one Content-Length, which is cut out and put back here;
  either way the head was parsed whole the first time.
- Memory is bounded: few heads, short ones only, all forgotten when there are too many.
"""

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import httptools

from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http import framing
from tokenlane.http.error_format import ErrorFormatOf, openai_errors
from tokenlane.http.framing import Headers
from tokenlane.http.headers import forwarded_fields, response_fields

_LENGTH_LINE: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,18})(?=\r\n)")
# Bytes around the target in a request line, its CR included.
_LINE_REST_BYTES: Final = len(b"OPTIONS  HTTP/1.1\r")
MEMO_LIMIT_BYTES: Final = 4 * 1024 * 1024
_MEMO_HEAD_LIMIT_BYTES: Final = 4096
# Memory of a remembered head: its bytes in three forms, each field's name and value, the objects
# around them.
_FORMS: Final = 3
_FIELD_BYTES: Final = 130
_HEAD_BYTES: Final = 200
_KEY_BYTES: Final = 130

_Head = TypeVar("_Head", bound="RequestHead | ResponseHead")


class RequestHead:
    """A request's head and what follows from it. Shared by all requests with the same head.

    target: origin form. path, query: its text. error_format: for its path. request_id_field: of
    that. minor: of HTTP/1.x. headers: lower-case names, in order. forwarded: the header lines a
    replica gets, without host, length and request id. bodiless: no length says anything of its
    body.
    """

    def __init__(
        self,
        line: framing.RequestLine,
        target: bytes,
        headers: Headers,
        dropped: frozenset[bytes],
        error_format: ErrorFormatOf,
    ) -> None:
        self.bodiless = False
        named = dict(reversed(headers))
        self.method = line.method.decode("ascii")
        self.minor = line.minor
        self.target = target
        self.path, _, self.query = target.decode("ascii").partition("?")
        self.error_format = error_format(self.path)
        self.request_id_field = self.error_format.request_id_field
        self.headers = headers
        self.chunked = False
        self.keep_alive = framing.keep_alive(line.minor, headers)
        self.expects_continue = line.minor == 1 and b"expect" in named
        self.request_id = named.get(b"x-request-id")
        self.forwarded = forwarded_fields(headers, dropped)


class ResponseHead:
    """A replica's head and what follows from it. Shared by all answers with the same head.

    fields: the header lines that the client gets, without length and request id. chunked: the body
    comes in chunks; endless: it ends with the connection; else its length is fixed. stream: SSE.
    bodiless: its status says that there is no body, whatever its length.
    """

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.bodiless = status in framing.BODILESS
        self.headers = headers
        self.chunked = False
        self.endless = False
        self.keep_alive = False
        self.fields = response_fields(headers)
        named = dict(headers)
        kind = named.get(b"content-type", b"").lower()
        # Events inside a compressed body cannot be read.
        self.stream = kind.startswith(b"text/event-stream") and b"content-encoding" not in named


class _Memo(Generic[_Head]):
    """Heads by all their bytes, with the body's length, and by all but that; starts over when it is
    full. exact, find: look them up."""

    def __init__(self) -> None:
        self._exact: dict[bytes, tuple[_Head, int]] = {}
        self._heads: dict[bytes, _Head] = {}
        self.exact = self._exact.get
        self.find = self._heads.get
        self.size_bytes = 0

    def parse(self, data: bytes, new: Callable[[bytes], tuple[_Head, int]]) -> tuple[_Head, int]:
        """Return a head that is not remembered by all its bytes, and its body's length. new: parses
        one that is not remembered at all."""
        key, length_bytes = _cut_length(data)
        head = self.find(key)
        if head is not None:
            parsed_bytes = max(length_bytes, 0)
        else:
            head, parsed_bytes = new(data)
            # A Content-Length spelled otherwise was not cut out, and one that says nothing of the
            # body is no length: such a head is not found without it.
            if parsed_bytes != max(length_bytes, 0) or head.bodiless:
                key = b""
        self._put(data, key, head, parsed_bytes)
        return head, parsed_bytes

    def _put(self, data: bytes, key: bytes, head: _Head, length_bytes: int) -> None:
        """Remember a head. key: `data` without the length; empty where the head must not be found
        by that."""
        if len(data) > _MEMO_HEAD_LIMIT_BYTES:
            return
        size_bytes = len(data) + _KEY_BYTES
        if key not in self._heads:
            size_bytes += _FORMS * len(data) + _FIELD_BYTES * len(head.headers) + _HEAD_BYTES
        if self.size_bytes + size_bytes > MEMO_LIMIT_BYTES:
            self._exact.clear()
            self._heads.clear()
            self.size_bytes = 0
        if key:
            self._heads[key] = head
        self._exact[data] = head, length_bytes
        self.size_bytes += size_bytes


class _Fields:
    """Collects the header fields that the parser finds."""

    def __init__(self) -> None:
        self.headers: Headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a field. The parser leaves the white space behind a value in place."""
        self.headers.append((name.lower(), value.rstrip(b" \t")))


def _split_fields(head: bytes) -> Headers:
    """Return the fields of a head whose grammar was checked."""
    pairs = (line.split(b":", 1) for line in head.split(b"\r\n")[1:-2])
    return [(name.lower(), value.strip(b" \t")) for name, value in pairs]


def _cut_length(head: bytes) -> tuple[bytes, int]:
    """Return the head without its first Content-Length line, and that length, or -1 if it has
    none."""
    match = _LENGTH_LINE.search(head)
    if match is None:
        return head, -1
    return head[: match.start()] + head[match.end() :] + b"L", int(match[1])


class RequestHeads:
    """Parses the heads of requests.

    settings: heads beyond their limits are refused. unreadable: stands for a head that could not be
    parsed.
    """

    def __init__(
        self, settings: ServerSettings, error_format: ErrorFormatOf = openai_errors
    ) -> None:
        self._error_format = error_format
        line = framing.RequestLine(b"", b"/", 1)
        self.unreadable = RequestHead(line, b"/", [], frozenset(), error_format)
        self.configure(settings, frozenset())

    def configure(self, settings: ServerSettings, dropped: frozenset[bytes]) -> None:
        """Replace the limits and `dropped`, the names of fields that replicas do not get, from the
        next head on."""
        self._settings = settings
        self._dropped = dropped
        self._memo: _Memo[RequestHead] = _Memo()

    @property
    def size_bytes(self) -> int:
        """Memory of the heads that are remembered, MEMO_LIMIT_BYTES at most."""
        return self._memo.size_bytes

    def parse(self, data: bytes) -> tuple[RequestHead, int]:
        """Return a head and its body's length in bytes (0 if it is chunked). data: the whole head,
        with its empty line.

        Raise RequestError as `framing` does, and 414 or 431 for what is too long.
        """
        known = self._memo.exact(data)
        return known if known is not None else self._memo.parse(data, self._new)

    def check_beginning(self, data: bytes) -> None:
        """Raise RequestError 400 or 414 if no head can begin so, whatever follows."""
        lines = data.count(b"\r\n")
        # A CR at the end may still get its LF.
        if data.count(b"\n") != lines or data.count(b"\r", 0, -1) != lines:
            raise framing.refusal("Lines must end with CRLF.", "bare_line_feed")
        if not lines and len(data) > self._settings.target_limit_bytes + _LINE_REST_BYTES:
            raise target_too_long()

    def _new(self, data: bytes) -> tuple[RequestHead, int]:
        # A line each, beside the first and the empty one: counted before they are looked at, which
        # takes 100 times their bytes.
        if data.count(b"\r\n") - 2 > self._settings.header_limit_count:
            raise head_too_large("Too many headers.")
        line = framing.check_head(data)
        if len(line.target) > self._settings.target_limit_bytes:
            raise target_too_long()
        target = framing.origin_form(line.target)
        fields = _Fields()
        try:
            httptools.HttpRequestParser(fields).feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # An Upgrade is ignored: what follows is a body or the next request.
        except httptools.HttpParserError:
            # The grammar is fine, so the lengths are wrong, and our own errors for those are
            # clearer.
            framing.body_length(line.minor, _split_fields(data))
            raise framing.refusal("The request head is malformed.", "request_head") from None
        length = framing.body_length(line.minor, fields.headers)
        head = RequestHead(line, target, fields.headers, self._dropped, self._error_format)
        head.chunked = length.chunked
        return head, length.length_bytes


_responses: _Memo[ResponseHead] = _Memo()


def responses_size_bytes() -> int:
    """Return the memory of the answers' heads that are remembered, MEMO_LIMIT_BYTES at most."""
    return _responses.size_bytes


def parse_response(data: bytes, method: str) -> tuple[ResponseHead, int]:
    """Return the head of the answer to a `method` request, and its body's length if that is fixed.
    data: the whole head, with its empty line.

    Interim answers (1xx) are returned too. Raise ValueError for what is no HTTP/1.x head, or whose
    body's end could be read in two ways.
    """
    if method == "HEAD":
        return _new_response(data, method)
    known = _responses.exact(data)
    return known if known is not None else _responses.parse(data, _new_response)


def _new_response(data: bytes, method: str = "") -> tuple[ResponseHead, int]:
    fields = _Fields()
    parser = httptools.HttpResponseParser(fields)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        raise ValueError("unasked upgrade") from None
    except httptools.HttpParserError:
        raise ValueError("malformed response head") from None
    status = parser.get_status_code()
    version = parser.get_http_version()
    if not 100 <= status <= 599 or version not in ("1.0", "1.1"):
        raise ValueError("status or version out of range")
    head = ResponseHead(status, fields.headers)
    if status < 200:
        return head, 0
    length = framing.response_length(status, method, fields.headers)
    head.endless = length is None
    head.chunked = length is not None and length.chunked
    minor = 0 if version == "1.0" else 1
    head.keep_alive = length is not None and framing.keep_alive(minor, fields.headers)
    return head, length.length_bytes if length is not None else 0


def head_too_large(message: str) -> RequestError:
    """Return a 431."""
    return framing.refusal(message, "headers_too_large", 431)


def target_too_long() -> RequestError:
    """Return a 414."""
    return framing.refusal("The request target is too long.", "target_too_long", 414)
