"""One request and its answer, as a handler sees them.

Invariants:
- An answer that was begun and not finished never ends cleanly: no last chunk, a short length,
  or a reset where only the end of the connection frames it.
- After the answer ended, or the client left, writes fall into the void; they never raise.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from tokenlane.errors import RequestError
from tokenlane.http.body_queue import SingleFile
from tokenlane.http.chunked import LAST_CHUNK, BodyReader, frame
from tokenlane.http.cors import Cors
from tokenlane.http.headers import Field, lines, status_line
from tokenlane.http.heads import RequestHead
from tokenlane.protocols.dialects import Dialect, error_json

# Bodies of so many bytes and more are handed over one in a turn of the loop.
_LONG_BYTES = 128 * 1024

_JSON: tuple[Field, ...] = ((b"content-type", b"application/json"),)


class Downstream(Protocol):
    """What an exchange needs of the connection it came on. reader: of a body still coming."""

    reader: BodyReader | None

    def write(self, data: bytes) -> None:
        """Bytes to the client, if it is still there."""

    def raw_write(self) -> Callable[[bytes], object]:
        """`write` without its look whether the client is still there (then it does nothing)."""
        ...

    async def room(self) -> None:
        """Returns when the client takes more, or is gone."""

    def new_waiter(self) -> asyncio.Future[None]:
        """A future of the connection's loop."""
        ...

    def may_keep_alive(self, exchange: "Exchange") -> bool:
        """Whether the connection can serve another request after this answer."""
        ...

    def answer_ended(self, exchange: "Exchange") -> None:
        """The answer is written."""

    def abort_answer(self, *, reset: bool) -> None:
        """The answer breaks off."""


class Serving(Protocol):
    """What an exchange needs of the server. cors: where pages of other origins may ask. lines:
    header lines it adds to every head, and the request's id too if `add_request_id`. long_bodies:
    those that are complete."""

    draining: bool
    cors: Cors | None
    lines: bytes
    add_request_id: bool
    long_bodies: SingleFile

    def request_id(self, offered: bytes | None) -> bytes:
        """The id a request gets."""
        ...


class Exchange:
    """One request and its answer.

    head: the request's (method, path, query, headers …). started_s: time.monotonic() when it was
    complete. request_id: kept or made. status: of the answer, 0 while there is none.
    body: the request's, None until it was read. on_flow: called with True when the client reads
    too slowly, with False when it caught up. splice: writes bytes of a begun answer that are
    framed already, exactly as `begin` announced.
    """

    began = False
    ended = False
    status = 0
    on_flow: Callable[[bool], None] | None = None
    body: bytes | None = None
    _body_done = False
    _waiter: asyncio.Future[None] | None = None
    _chunked = False
    _eof_framed = False
    _continued = False
    _pieces: list[bytes] | None = None

    def __init__(self, connection: Downstream, server: Serving, head: RequestHead) -> None:
        self._connection = connection
        self._server = server
        self.head = head
        self.method = head.method
        self.path = head.path
        self.headers = head.headers
        self.keep_alive = head.keep_alive
        self.started_s = time.monotonic()
        self.request_id = server.request_id(head.request_id)
        self.splice: Callable[[bytes], object] = connection.write

    @property
    def query(self) -> str:
        """What stands behind the `?` of the target."""
        return self.head.query

    @property
    def announced_bytes(self) -> int:
        """Size of the body, read or not; of a chunked one, what has come of it."""
        if self.body is not None:
            return len(self.body)
        come_bytes = sum(map(len, self._pieces or ()))
        return come_bytes + int(getattr(self._connection.reader, "left_bytes", 0))

    def header(self, name: bytes) -> bytes | None:
        """The first value under a lower-case name."""
        for candidate, value in self.headers:
            if candidate == name:
                return value
        return None

    async def read_body(self) -> bytes:
        """The whole body; raises RequestError 400, 408 or 413."""
        if not self._body_done:
            if self.head.expects_continue and not self._continued:
                self._continued = True
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waiter = self._connection.new_waiter()
            await self._waiter
        if self.body is None:
            self.body = b"".join(self._pieces or ())
            self._pieces = None
        return self.body

    def respond(self, status: int, headers: Sequence[Field] | bytes, body: bytes) -> None:
        """A whole answer. headers: fields, or lines made of them."""
        head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        self._connection.write(head + body if self.method != "HEAD" else head)
        self.ended = True
        self._connection.answer_ended(self)

    def preflight(self) -> bool:
        """Answers a browser's question whether a page may ask; False if it is none, or no page
        of its origin may."""
        cors = self._server.cors
        if cors is None or self.method != "OPTIONS" or not cors.allows(self.header(b"origin")):
            return False
        self.respond(200, cors.preflight(self.header(b"access-control-request-headers")), b"")
        return True

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
        body = error_json(self.head.dialect, error, self.request_id)
        self.respond(error.status, headers, body)

    def begin(
        self,
        status: int,
        headers: Sequence[Field] | bytes,
        *,
        length_bytes: int | None = None,
    ) -> None:
        """The head of an answer that comes in pieces: with `length_bytes`, else chunked (on
        HTTP/1.0, where there are no chunks, the end of the connection ends it)."""
        if length_bytes is not None:
            line = b"content-length: %d\r\n" % length_bytes
        elif self.head.minor == 1:
            self._chunked = True
            line = b"transfer-encoding: chunked\r\n"
        else:
            self._eof_framed = True
            self.keep_alive = False
            line = b""
        self._connection.write(self._head(status, headers, line))
        self.splice = self._connection.raw_write()

    def write(self, payload: bytes) -> None:
        """Payload of a begun answer, framed here."""
        if payload:
            self._connection.write(frame(payload) if self._chunked else payload)

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

    def body_whole(self, body: bytes) -> None:
        """The connection read the whole body at once."""
        self.body = body
        self._body_done = True

    def body_bytes(self, piece: bytes) -> None:
        """The connection read a piece of the body."""
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(piece)

    def body_end(self) -> None:
        """The connection read the whole body."""
        self._body_done = True
        if self._waiter is None or self._waiter.done():
            return
        if sum(map(len, self._pieces or ())) < _LONG_BYTES:
            self._waiter.set_result(None)
        else:
            self._server.long_bodies.let(self._waiter)

    def body_error(self, error: RequestError) -> bool:
        """The body cannot be read; False if nobody waits for it (yet)."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            return True
        return False

    def _head(self, status: int, headers: Sequence[Field] | bytes, length_line: bytes) -> bytes:
        self.began = True
        self.status = status
        server = self._server
        if server.draining or self._connection.reader is not None:
            self.keep_alive = self.keep_alive and self._connection.may_keep_alive(self)
        if not self.keep_alive:
            length_line += b"connection: close\r\n"
        elif self.head.minor == 0:
            length_line += b"connection: keep-alive\r\n"
        if server.add_request_id:
            length_line += b"x-request-id: %b\r\n" % self.request_id
            if self.head.dialect is Dialect.MESSAGES:
                length_line += b"request-id: %b\r\n" % self.request_id
        if server.cors is not None:
            length_line += server.cors.lines(self.header(b"origin"))
        if not isinstance(headers, bytes):
            headers = lines(headers)
        return b"%b%b%b%b\r\n" % (status_line(status), headers, length_line, server.lines)

    def _end(self) -> None:
        self.ended = True
        self._connection.answer_ended(self)


Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
