"""Where a request's head and body end, and which heads are refused: RFC 9112, strictly.

Invariants:
- A head passes `check_head` or is refused. The parser (llhttp) takes it apart only then, so what
  it would forgive has been refused before.
- No message can be read in two ways: it has one length, from one field, or none.
- Error messages name the rule, never the bytes that broke it.
"""

import re
from typing import NamedTuple

from tokenlane.errors import RequestError

Headers = list[tuple[bytes, bytes]]

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_FIELD_LINE = _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n"
_HEAD = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n"
    rb"(?:" + _FIELD_LINE + rb")*\r\n"
)
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HOST = re.compile(
    rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=%]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?", re.ASCII
)
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([/?].*)?", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,18}")

# Methods the parser knows and some route may serve. Others are 501; these two are 405, since
# a gateway must never echo a request or open a tunnel.
METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"})
REFUSED_METHODS = frozenset({b"TRACE", b"CONNECT"})

# Statuses of answers that have no body, whatever their length says.
BODILESS = frozenset((*range(100, 200), 204, 304))


class BodyLength(NamedTuple):
    """`chunked`, or exactly `length_bytes` bytes (0: no body)."""

    chunked: bool
    length_bytes: int


class RequestLine(NamedTuple):
    """method and target as sent; minor: HTTP/1.<minor>."""

    method: bytes
    target: bytes
    minor: int


def refusal(message: str, code: str, status: int = 400) -> RequestError:
    """Return the answer to what cannot be read as a request, after which the connection closes."""
    return RequestError(status, message, code=code, close=True)


def check_head(head: bytes) -> RequestLine:
    """Return the request line of an HTTP/1.0 or 1.1 request head. head: whole, with its empty line.

    Raise RequestError 400, 405, 501 or 505 for what is not exactly one.
    """
    match = _HEAD.fullmatch(head)
    if match is None:
        raise _diagnose(head)
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        raise refusal("Only HTTP/1.0 and HTTP/1.1 are served here.", "http_version", 505)
    if method not in METHODS:
        if method in REFUSED_METHODS:
            raise refusal("TRACE and CONNECT are not served.", "method_not_allowed", 405)
        raise refusal("This method is not implemented.", "method_not_implemented", 501)
    return RequestLine(method, target, minor[0] - 48)


def _diagnose(head: bytes) -> RequestError:
    """Return why a head is refused: the first rule that it breaks."""
    if re.search(rb"(?<!\r)\n|\r(?!\n)", head):
        return refusal("Lines must end with CRLF.", "bare_line_feed")
    if b"\x00" in head:
        return refusal("A NUL byte in the request head.", "control_character")
    lines = head[:-4].split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        return refusal("The request line is malformed.", "request_line")
    for field in lines[1:]:
        if field[:1] in (b" ", b"\t"):
            return refusal("Folded header lines are not accepted.", "folded_header")
        name, colon, value = field.partition(b":")
        if not colon or not re.fullmatch(_TOKEN, name):
            return refusal("A header name is malformed.", "header_name")
        if not re.fullmatch(rb"[\t\x20-\x7e\x80-\xff]*", value):
            return refusal("A control character in a header value.", "control_character")
    return refusal("The request head is malformed.", "request_head")


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a target. Absolute form loses its authority: no part of a
    request ever chooses an upstream. Raise RequestError 400 for any other form."""
    if target[:1] == b"/":
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None or not _valid_host(match.group(1)):
        raise refusal("The request target must be a path.", "request_target")
    rest: bytes = match.group(2) or b"/"
    return rest if rest[:1] == b"/" else b"/" + rest


def _valid_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    return match is not None and int(match.group(1) or 0) <= 65535


def body_length(minor: int, headers: Headers) -> BodyLength:
    """Return how a request's body is framed. headers: with lower-case names. Host is checked here
    too: like the length, it must not be read in two ways. Raise RequestError 400, 415, 417, 501."""
    length: bytes | None = None
    coding: bytes | None = None
    hosts = 0
    for name, value in headers:
        if name == b"content-length":
            if length is not None:
                raise refusal("More than one Content-Length.", "content_length")
            length = value
        elif name == b"transfer-encoding":
            if coding is not None:
                raise refusal("More than one Transfer-Encoding.", "transfer_encoding")
            coding = value
        elif name == b"host":
            hosts += 1
            if not _valid_host(value):
                raise refusal("The Host header is malformed.", "host")
        elif name == b"expect" and value.lower() != b"100-continue":
            raise refusal("Only 'Expect: 100-continue' is understood.", "expectation", 417)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise refusal("Compressed request bodies are not accepted.", "content_encoding", 415)
    if hosts > 1 or (hosts == 0 and minor == 1):
        raise refusal("Exactly one Host header is required.", "host")
    if coding is not None:
        if length is not None:
            raise refusal("Both Content-Length and Transfer-Encoding.", "ambiguous_length")
        if minor == 0:
            raise refusal("Transfer-Encoding on HTTP/1.0.", "transfer_encoding")
        if coding.lower() != b"chunked":
            raise refusal("Only 'Transfer-Encoding: chunked' is served.", "transfer_encoding", 501)
        return BodyLength(True, 0)
    if length is None:
        return BodyLength(False, 0)
    if _DIGITS.fullmatch(length) is None:
        raise refusal("Content-Length is not a number.", "content_length")
    return BodyLength(False, int(length))


def response_length(status: int, method: str, headers: Headers) -> BodyLength | None:
    """Return how the body of a replica's answer is framed; None if the connection's end ends it.

    Raise ValueError where it can be read in two ways.
    """
    if status in BODILESS or method == "HEAD":
        return BodyLength(False, 0)
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked":
            raise ValueError("ambiguous response length")
        return BodyLength(True, 0)
    if not lengths:
        return None
    if len(lengths) > 1 or _DIGITS.fullmatch(lengths[0]) is None:
        raise ValueError("bad response Content-Length")
    return BodyLength(False, int(lengths[0]))


def keep_alive(minor: int, headers: Headers) -> bool:
    """Return whether the sender of these headers wants the connection kept."""
    kept = minor == 1
    for name, value in headers:
        if name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            if b"close" in options:
                return False
            kept = kept or b"keep-alive" in options
    return kept
