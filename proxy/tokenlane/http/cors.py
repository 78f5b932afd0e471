"""Pages of other origins: what a browser is told before they may ask, and to show the answer. Pure.

Invariants:
- Only origins that the operator named are let in; whoever is not named gets the answer without
  the fields that would let a browser show it to the page.
- Cookies are never asked for: a key goes into a header that the page itself sets.
"""

from collections.abc import Collection, Sequence
from typing import Final
from urllib.parse import urlsplit

Field = tuple[bytes, bytes]

ANY: Final = "*"
# A browser asks again after this; none remembers it for more than two hours.
_PREFLIGHT_AGE_S: Final = 7200
_EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, request-id, retry-after, x-should-retry, "
    b"x-tokenlane-replica, x-tokenlane-route, x-tokenlane-cached-tokens\r\n"
)
_VARY: Final = b"vary: origin\r\n"


def is_origin(text: str) -> bool:
    """Whether it is one as browsers write it (`https://app.example:8443`), or the word for all."""
    if text == ANY:
        return True
    parts = urlsplit(text)
    return (
        parts.scheme in ("http", "https")
        and bool(parts.netloc)
        and text == f"{parts.scheme}://{parts.netloc}".lower()
        and text.isascii()
        and text.isprintable()
    )


class Cors:
    """origins: as of `is_origin`; at least one."""

    def __init__(self, origins: Collection[str]) -> None:
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self._lines = {
            origin: b"access-control-allow-origin: %b\r\n%b%b" % (origin, _EXPOSED, _VARY)
            for origin in self._origins
        }

    def lines(self, origin: bytes | None) -> bytes:
        """Header lines of an answer. origin: of the request, None where it names none."""
        if self._any:
            return self._lines[ANY.encode()] if origin is not None else _VARY
        return self._lines.get(origin or b"", _VARY)

    def allows(self, origin: bytes | None) -> bool:
        """Whether pages of an origin may ask."""
        return origin is not None and (self._any or origin in self._origins)

    def preflight(self, asked: bytes | None) -> Sequence[Field]:
        """What may be asked, beside `lines`. asked: the fields that the page wants to send."""
        fields = [
            (b"access-control-allow-methods", b"GET, POST"),
            (b"access-control-max-age", b"%d" % _PREFLIGHT_AGE_S),
        ]
        if asked:
            fields.append((b"access-control-allow-headers", asked))
        return fields
