"""Cross-origin requests (CORS): which pages a browser lets send them and read the answers. Pure.

Invariants:
- Only origins that the operator named are allowed. Pages of others get the answer without the
  fields that would let a browser show it to them.
- Credentials (cookies) are never allowed: a key goes into a header that the page itself sets.
"""

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

from tokenlane.http.headers import Field

ANY: Final = "*"
# A browser asks again after this; none remembers an answer for more than two hours.
_PREFLIGHT_AGE_S: Final = 7200
_EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, request-id, retry-after, x-should-retry, "
    b"x-tokenlane-replica, x-tokenlane-route, x-tokenlane-forwarded, "
    b"x-tokenlane-cached-tokens\r\n"
)
_VARY: Final = b"vary: origin\r\n"


def is_origin(text: str) -> bool:
    """Return whether `text` is an origin as browsers write it (`https://app.example:8443`), or the
    word for all."""
    if text == ANY:
        return True
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.netloc)
        and text == f"{parts.scheme}://{parts.netloc}".lower()
        and text.isascii()
        and text.isprintable()
    )


class Cors:
    """The allowed origins. origins: at least one, each good for `is_origin`."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._lines = {
            origin: b"access-control-allow-origin: %b\r\n%b%b" % (origin, _EXPOSED, _VARY)
            for origin in self._origins
        }

    def lines(self, origin: bytes | None) -> bytes:
        """Return header lines for an answer. origin: of the request, None where it names none."""
        if self._any:
            return self._lines[ANY.encode()] if origin is not None else _VARY
        return self._lines.get(origin or b"", _VARY)

    def allows(self, origin: bytes | None) -> bool:
        """Return whether pages of an origin may send requests."""
        return origin is not None and (self._any or origin in self._origins)

    def preflight(self, asked: bytes | None) -> Sequence[Field]:
        """Return what answers a preflight, beside `lines`. asked: the fields that the page wants to
        send."""
        fields = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
        ]
        if asked:
            fields.append((b"access-control-allow-headers", asked))
        return fields
