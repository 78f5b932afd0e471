"""Which headers cross the gateway, and heads as bytes.

Invariants:
- Hop-by-hop fields and those a Connection header names stay on their hop (RFC 9110 7.6.1),
  but a client cannot strip what the gateway or the replica relies on by naming it there.
- Every head sent upstream is built here: one Host, one length, no Transfer-Encoding.
- Names are lower case on the way through; values pass as they came.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

Field = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_REQUEST_DROPPED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
_RESPONSE_DROPPED = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_NOT_STRIPPABLE = frozenset(
    {b"authorization", b"content-type", b"content-length", b"host", b"x-request-id"}
)
STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def _named_by_connection(headers: Iterable[Field]) -> set[bytes]:
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            named.update(option.strip().lower() for option in value.split(b","))
    return named - _NOT_STRIPPABLE


def request_head(
    method: bytes,
    target: bytes,
    host: bytes,
    headers: Sequence[Field],
    request_id: bytes,
    length_bytes: int | None,
) -> bytes:
    """The head for a replica. length_bytes None: no body and no Content-Length (GET).

    Our own `x-tokenlane-*` names are ours: a client's are dropped. Names with an underscore are
    dropped too: some servers fold them onto the dashed name.
    """
    named = _named_by_connection(headers)
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method, target, host)]
    for name, value in headers:
        if name in _REQUEST_DROPPED or name in named or b"_" in name:
            continue
        if name.startswith(b"x-tokenlane-"):
            continue
        lines.append(b"%b: %b\r\n" % (name, value))
    lines.append(b"x-request-id: %b\r\n" % request_id)
    if length_bytes is not None:
        lines.append(b"content-length: %d\r\n" % length_bytes)
    lines.append(b"\r\n")
    return b"".join(lines)


def response_fields(headers: Sequence[Field]) -> list[Field]:
    """A replica's headers as the client gets them; length and request id are set anew."""
    named = _named_by_connection(headers)
    return [
        field for field in headers if field[0] not in _RESPONSE_DROPPED and field[0] not in named
    ]


def response_head(status: int, headers: Iterable[Field]) -> bytes:
    """Status line, fields, empty line."""
    line = STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
    return b"%b%b\r\n" % (line, b"".join([b"%b: %b\r\n" % field for field in headers]))
