"""Which headers are passed on, and heads as bytes.

Invariants:
- Hop-by-hop fields, and those that a Connection header names, are not passed on (RFC 9110 7.6.1).
  Naming a field there does not strip it if the gateway or the replica relies on it.
- Every head for a replica is built here: one Host, one length, no Transfer-Encoding.
- Names become lower case, values pass unchanged.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

Field = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade http2-settings".split()
)
_REQUEST_DROPPED: Final = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
# The gateway itself sets the request's id, under both names.
_RESPONSE_DROPPED: Final = HOP_BY_HOP | {b"content-length", b"x-request-id", b"request-id"}
# Headers in which a proxy in front names its client: passed on from trusted peers only.
FORWARDED_FIELDS: Final = frozenset(
    b"forwarded x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-prefix "
    b"x-forwarded-proto x-forwarded-server x-original-forwarded-for x-real-ip".split()
)
_NOT_STRIPPABLE: Final = frozenset(
    {b"authorization", b"content-type", b"content-length", b"host", b"x-request-id"}
)
STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def _named_by_connection(headers: Iterable[Field]) -> set[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(option.strip().lower() for option in value.split(b","))
    return named - _NOT_STRIPPABLE


def lines(fields: Iterable[Field]) -> bytes:
    """Return fields as header lines."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


def forwarded_fields(headers: Sequence[Field], dropped: frozenset[bytes] = frozenset()) -> bytes:
    """Return a client's header lines as a replica gets them, without host, length and request id.
    dropped: further names that are not passed on.

    A client's `x-tokenlane-*` fields are dropped: only the gateway sets them. So are names with an
    underscore, which some servers take for the same name with a dash.
    """
    named = _named_by_connection(headers)
    return lines(
        field
        for field in headers
        if field[0] not in _REQUEST_DROPPED
        and field[0] not in named
        and field[0] not in dropped
        and b"_" not in field[0]
        and not field[0].startswith(b"x-tokenlane-")
    )


def request_head(
    method: str,
    target: bytes,
    lines: bytes,
    forwarded: bytes,
    request_id: bytes,
    length_bytes: int,
) -> bytes:
    """Return the head of a request to a replica. lines: those of every request to it, its Host
    among them. forwarded: lines made by `forwarded_fields`."""
    return b"%b %b HTTP/1.1\r\n%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
        method.encode("ascii"),
        target,
        lines,
        forwarded,
        request_id,
        length_bytes,
    )


def response_fields(headers: Sequence[Field]) -> bytes:
    """Return a replica's header lines as the client gets them, without length and request id."""
    named = _named_by_connection(headers)
    return lines(
        field for field in headers if field[0] not in _RESPONSE_DROPPED and field[0] not in named
    )


def status_line(status: int) -> bytes:
    """Return a status line, with its CRLF."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
