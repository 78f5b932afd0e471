"""A replica's answers on its connections, with the heads that uvicorn writes.

Invariants:
- `sent_bytes` counts payload, before chunk framing.
- Only here does the simulator reach below an Exchange, to break connections on purpose.
"""

import asyncio
import time
from email.utils import formatdate
from functools import lru_cache

from tokenlane.http.headers import Field
from tokenlane.http.server import Exchange

JSON = (b"content-type", b"application/json")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_SERVER = (b"server", b"uvicorn")
_VARY = (b"vary", b"Origin")
_RESET_DELAY_S = 0.005


@lru_cache(maxsize=1)
def _date(second: int) -> Field:
    """Return the date header, which is formatted once a second."""
    return b"date", formatdate(second, usegmt=True).encode()


class Reply:
    """The answer to one exchange. echo_id: sent as x-request-id, as vLLM does on demand."""

    def __init__(self, exchange: Exchange, echo_id: bytes | None = None) -> None:
        self._exchange = exchange
        self._echo_id = echo_id
        self.begun = False
        self.sent_bytes = 0

    def respond(self, status: int, content_type: Field | None, body: bytes, *more: Field) -> None:
        """Send a whole answer."""
        self.begun = True
        self._exchange.respond(status, self._fields(content_type, more), body)

    def begin(self, content_type: Field, *, length_bytes: int | None = None) -> None:
        """Send the head of a 200 that comes in pieces."""
        self.begun = True
        self._exchange.begin(200, self._fields(content_type, ()), length_bytes=length_bytes)

    def write(self, payload: bytes) -> None:
        """Send a piece."""
        self.sent_bytes += len(payload)
        self._exchange.write(payload)

    def finish(self) -> None:
        """End the answer cleanly."""
        self._exchange.finish()

    def die(self, *, reset: bool = False) -> None:
        """Close the connection. Written bytes still arrive, though not surely before a reset."""
        if not reset:
            self._exchange.abort()
            return
        # The loop sends what is written when it next polls; a reset now would overtake it.
        asyncio.get_running_loop().call_later(_RESET_DELAY_S, self._reset)

    def garbage(self) -> None:
        """Send bytes that are not HTTP, then close."""
        self._exchange.splice(b"\x00\x16garbage: not HTTP\x7f\r\n\r\n\xff\xfe")
        self._exchange.abort()

    def _reset(self) -> None:
        self._exchange._connection.abort_answer(reset=True)  # noqa: SLF001  no server offers this

    def _fields(self, content_type: Field | None, more: tuple[Field, ...]) -> list[Field]:
        fields = [_date(int(time.time())), _SERVER, *more]
        if content_type is not None:
            fields.append(content_type)
        if self._echo_id is not None:
            fields.append((b"x-request-id", self._echo_id))
        fields.append(_VARY)
        return fields
