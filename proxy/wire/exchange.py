"""One request and its answer, as a handler sees them.

Invariants:
- An answer that was begun and not finished never ends cleanly: no last chunk, a short length,
  or a reset where only the end of the connection frames it.
- After the answer ended, or the client left, writes fall into the void; they never raise.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from proxy.errors import RequestError, error_body
from proxy.wire import framing
from proxy.wire.chunked import LAST_CHUNK, frame
from proxy.wire.headers import Field, response_head

_JSON: tuple[Field, ...] = ((b"content-type", b"application/json"),)


class Downstream(Protocol):
    """What an exchange needs of the connection it came on."""

    def write(self, data: bytes) -> None:
        """Bytes to the client, if it is still there."""

    async def room(self) -> None:
        """Returns when the client takes more, or is gone."""

    def new_waiter(self) -> asyncio.Future[None]:
        """A future of the connection's loop."""
        ...

    def request_id(self, offered: bytes | None) -> bytes:
        """The id a request gets."""
        ...

    def own_fields(self, exchange: "Exchange") -> Sequence[Field]:
        """What the server adds to every head."""
        ...

    def may_keep_alive(self, exchange: "Exchange") -> bool:
        """Whether the connection can serve another request after this answer."""
        ...

    def answer_ended(self, exchange: "Exchange") -> None:
        """The answer is written."""

    def abort_answer(self, *, reset: bool) -> None:
        """The answer breaks off."""


class Exchange:
    """One request and its answer.

    method, path, query: text of the request line. headers: lower-case names, in order.
    started_s: time.monotonic() when the head was complete. request_id: kept or made.
    on_flow: called with True when the client reads too slowly, with False when it caught up.
    """

    __slots__ = (
        "_body",
        "_body_done",
        "_chunked",
        "_connection",
        "_eof_framed",
        "_expects_continue",
        "_pieces",
        "_waiter",
        "began",
        "ended",
        "headers",
        "keep_alive",
        "method",
        "minor",
        "on_flow",
        "path",
        "query",
        "request_id",
        "started_s",
        "status",
        "target",
    )

    def __init__(
        self,
        connection: Downstream,
        line: framing.RequestLine,
        target: bytes,
        headers: framing.Headers,
    ) -> None:
        self._connection = connection
        self.method = line.method.decode("ascii")
        self.minor = line.minor
        self.target = target
        self.path, _, self.query = target.decode("ascii").partition("?")
        self.headers = headers
        self.keep_alive = framing.keep_alive(line.minor, headers)
        self.started_s = time.monotonic()
        self.request_id = connection.request_id(self.header(b"x-request-id"))
        self._expects_continue = self.header(b"expect") is not None and line.minor == 1
        self._pieces: list[bytes] = []
        self._body: bytes | None = None
        self._body_done = False
        self._waiter: asyncio.Future[None] | None = None
        self._chunked = False
        self._eof_framed = False
        self.began = False
        self.ended = False
        self.status = 0
        self.on_flow: Callable[[bool], None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value under a lower-case name."""
        for candidate, value in self.headers:
            if candidate == name:
                return value
        return None

    async def read_body(self) -> bytes:
        """The whole body; raises RequestError 400, 408 or 413."""
        if not self._body_done:
            if self._expects_continue:
                self._expects_continue = False
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waiter = self._connection.new_waiter()
            await self._waiter
        if self._body is None:
            self._body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces = []
        return self._body

    def respond(self, status: int, headers: Sequence[Field], body: bytes) -> None:
        """A whole answer."""
        head = self._head(status, [*headers, (b"content-length", b"%d" % len(body))])
        self._connection.write(head + body if self.method != "HEAD" else head)
        self._end()

    def fail(self, error: RequestError) -> None:
        """The answer to a request that cannot be served; aborts one that was begun."""
        if self.began:
            self.abort()
            return
        if error.close:
            self.keep_alive = False
        headers = [*_JSON, *error.headers]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        body = error_body(error.message, error.kind, param=error.param, code=error.code)
        self.respond(error.status, headers, body)

    def begin(
        self, status: int, headers: Sequence[Field], *, length_bytes: int | None = None
    ) -> None:
        """The head of an answer that comes in pieces: with `length_bytes`, else chunked (on
        HTTP/1.0, where there are no chunks, the end of the connection ends it)."""
        fields = list(headers)
        if length_bytes is not None:
            fields.append((b"content-length", b"%d" % length_bytes))
        elif self.minor == 1:
            self._chunked = True
            fields.append((b"transfer-encoding", b"chunked"))
        else:
            self._eof_framed = True
            self.keep_alive = False
        self._connection.write(self._head(status, fields))

    def write(self, payload: bytes) -> None:
        """Payload of a begun answer, framed here."""
        if payload:
            self._connection.write(frame(payload) if self._chunked else payload)

    def splice(self, framed: bytes) -> None:
        """Bytes of a begun answer that are framed already, exactly as `begin` announced."""
        self._connection.write(framed)

    async def drain(self) -> None:
        """Returns when the client has room for more."""
        await self._connection.room()

    def finish(self, *, spliced: bool = False) -> None:
        """A clean end. spliced: its last chunk came through `splice`."""
        if self._chunked and not spliced:
            self._connection.write(LAST_CHUNK)
        self._end()

    def abort(self) -> None:
        """An end that cannot be taken for a clean one: without the last chunk or the promised
        length, and where only the end of the connection frames the answer, by a reset."""
        self.ended = True
        self._connection.abort_answer(reset=self._eof_framed)

    def body_bytes(self, piece: bytes) -> None:
        """The connection read a piece of the body."""
        self._pieces.append(piece)

    def body_end(self) -> None:
        """The connection read the whole body."""
        self._body_done = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def body_error(self, error: RequestError) -> bool:
        """The body cannot be read; False if nobody waits for it (yet)."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            return True
        return False

    def _head(self, status: int, fields: list[Field]) -> bytes:
        self.began = True
        self.status = status
        self.keep_alive = self._connection.may_keep_alive(self)
        if not self.keep_alive:
            fields.append((b"connection", b"close"))
        elif self.minor == 0:
            fields.append((b"connection", b"keep-alive"))
        return response_head(status, [*fields, *self._connection.own_fields(self)])

    def _end(self) -> None:
        self.ended = True
        self._connection.answer_ended(self)


Handler = Callable[[Exchange], Awaitable[None]]
