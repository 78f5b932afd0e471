"""One client connection: bytes to requests, answers to bytes, and its deadlines.

Invariants:
- One request of a connection is in hand at a time. Bytes behind it wait unparsed, up to a
  limit, then reading stops: pipelining is bounded and answers keep their order.
- The handler runs in the only task of a request; it is cancelled when the client leaves. A
  client that closes its sending half has left (as in nginx).
- Where the rest of the bytes cannot be read as requests any more, the connection closes.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tokenlane.errors import RequestError
from tokenlane.http.chunked import BodyReader, ChunkedReader, ChunkError, FixedReader
from tokenlane.http.deadline import NEVER, Deadline
from tokenlane.http.exchange import Exchange
from tokenlane.http.framing import RequestLine
from tokenlane.http.heads import RequestHead, head_too_large, target_too_long
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, PARSE

if TYPE_CHECKING:
    from tokenlane.http.server import HttpServer

_LINGER_S = 2.0
# Stands for the head of a request that could not be read.
_UNREADABLE = RequestHead(RequestLine(b"GET", b"/", 1), b"/", [])
_DRAINED_REST_LIMIT_BYTES = 64 * 1024
# What stands around the target in a request line, its CR included.
_LINE_REST_BYTES = len(b"OPTIONS  HTTP/1.1\r")


class ServerConnection:
    """One client connection, an asyncio.Protocol in all but name (see setup.py). Between heads
    `_exchange` is None; `_reader` reads a body."""

    def __init__(self, server: "HttpServer") -> None:
        self.server = server
        self.loop = server.loop
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._exchange: Exchange | None = None
        self.reader: BodyReader | None = None
        self._body_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._deadline = Deadline(self.loop, self._late)
        self._paused_reading = False
        self._head_began = False
        self._held_bytes = 0
        self._room: asyncio.Future[None] | None = None
        self._deaf = False
        self._heads_read = server.heads

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._heads_read = self.server.heads_of(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=self.server.settings.write_high_water_bytes)
        self.server.opened(self)
        self._deadline.set(self.server.idle_s)

    def data_received(self, data: bytes) -> None:
        LOOP.mark(PARSE)
        self._received(data)
        LOOP.mark(OTHER)

    def _received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self.reader is not None:
            self._body(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._exchange is None and self._room is None:
            self._heads()
        if len(self._buffer) > self.server.settings.pipelined_limit_bytes and (
            self._exchange is not None or self._room is not None
        ):
            self._pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._let_go()
        self.server.closed(self)
        self._transport = None
        if self._task is not None:
            if self._exchange is not None and self._exchange.ended:
                # The answer was broken off: its handler was woken, and says why before it goes.
                self.loop.call_soon(self._task.cancel)
            else:
                self._task.cancel()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def pause_writing(self) -> None:
        self._room = self.loop.create_future()
        self._deadline.set(self.server.settings.write_stall_deadline_s)
        if self._exchange is not None and self._exchange.on_flow is not None:
            self._exchange.on_flow(True)

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None
        if self._exchange is None:
            self._next()
            return
        self._deadline.clear()
        if self._exchange.on_flow is not None:
            self._exchange.on_flow(False)

    # -- requests ----------------------------------------------------------------------------

    def _heads(self) -> None:
        """Takes the next request off the buffer, if its head is complete."""
        buffer = self._buffer
        # RFC 9112 2.2: an empty line before a request line is forgiven (once per read).
        if buffer[:2] == b"\r\n":
            buffer = self._buffer = buffer[2:]
        settings = self.server.settings
        end = buffer.find(b"\r\n\r\n") + 4
        try:
            if (end if end >= 4 else len(buffer)) > settings.head_limit_bytes:
                raise head_too_large("The request head is too large.")
            if end < 4:
                self._incomplete_head()
                return
            head, length_bytes = self._heads_read.parse(buffer[:end])
        except RequestError as error:
            self._refuse(error)
            return
        self._deadline.due_s = NEVER
        self._head_began = False
        self._exchange = exchange = Exchange(self, self.server, head)
        if length_bytes > settings.body_limit_bytes:
            self._refuse(self._body_too_large())
            return
        if head.chunked or length_bytes:
            if not self.server.takes(length_bytes):
                self._refuse(self.server.no_memory())
                return
            self._held_bytes = length_bytes
            self.server.held_bytes += length_bytes
        if head.chunked or length_bytes:
            self._buffer = b""
            self._begin_body(exchange, length_bytes, buffer[end:])
        else:
            self._buffer = buffer[end:]
            exchange.body_end()
        if self._exchange is exchange and not exchange.ended:
            self._task = self.loop.create_task(self.server.run(exchange))

    def _begin_body(self, exchange: Exchange, length_bytes: int, rest: bytes) -> None:
        if len(rest) >= length_bytes > 0:
            # The usual case: the body came with its head.
            self._buffer = rest[length_bytes:]
            exchange.body_whole(rest[:length_bytes] if self._buffer else rest)
            return
        self._body_bytes = 0
        self.reader = ChunkedReader() if exchange.head.chunked else FixedReader(length_bytes)
        self._deadline.set(self.server.settings.body_deadline_s)
        self._resume_reading()
        if rest:
            self._body(rest)

    def _incomplete_head(self) -> None:
        """Waits for the rest of a head, unless no rest could make it a good one."""
        if not self._buffer:
            return
        lines = self._buffer.count(b"\r\n")
        # A CR at the end may still get its LF.
        if self._buffer.count(b"\n") != lines or self._buffer.count(b"\r", 0, -1) != lines:
            raise RequestError(400, "Lines must end with CRLF.", code="bare_line_feed", close=True)
        limit_bytes = self.server.settings.target_limit_bytes + _LINE_REST_BYTES
        if len(self._buffer) > limit_bytes and b"\r\n" not in self._buffer:
            raise target_too_long()
        self._resume_reading()
        if not self._head_began:  # a byte now and then does not buy more time
            self._head_began = True
            self._deadline.set(self.server.settings.head_deadline_s)

    def _body(self, data: bytes) -> None:
        exchange, reader = self._exchange, self.reader
        assert exchange is not None
        assert reader is not None
        try:
            pieces, consumed = reader.feed(data)
        except ChunkError:
            self._bad_body(
                RequestError(400, "The chunked body is malformed.", code="chunked", close=True)
            )
            return
        # One piece per read: a thousand small chunks are kept as what they carry.
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._body_bytes += len(payload)
        if payload and not exchange.ended:
            exchange.body_bytes(payload)
            # A chunked body does not say beforehand how much of it there is.
            if self._body_bytes > self._held_bytes and not self._holds_more():
                self._bad_body(self.server.no_memory())
                return
        limit = self.server.settings.body_limit_bytes
        if exchange.ended:
            limit = _DRAINED_REST_LIMIT_BYTES
        if self._body_bytes > limit:
            self._bad_body(self._body_too_large())
            return
        if reader.done:
            self.reader = None
            self._buffer = data[consumed:]
            self._deadline.clear()
            exchange.body_end()
            if exchange.ended:
                self._next()

    def _holds_more(self) -> bool:
        """Counts what has come of the body beyond its announced length; False if it may not."""
        more_bytes = self._body_bytes - self._held_bytes
        if not self.server.takes(more_bytes, self._held_bytes):
            return False
        self._held_bytes += more_bytes
        self.server.held_bytes += more_bytes
        return True

    def _let_go(self) -> None:
        """The request's body is not held any more."""
        self.server.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def _body_too_large(self) -> RequestError:
        limit = self.server.settings.body_limit_bytes
        return RequestError(
            413, f"The body is larger than {limit} bytes.", code="body_too_large", close=True
        )

    def _bad_body(self, error: RequestError) -> None:
        """The rest of the connection cannot be read as requests any more."""
        self.reader = None
        self._deaf = True
        exchange = self._exchange
        assert exchange is not None
        if exchange.ended:
            self._close_lingering()
        elif not exchange.body_error(error):
            if self._task is not None:
                self._task.cancel()
            exchange.fail(error)
            if self._task is None:
                self.server.refused(exchange)

    def _refuse(self, error: RequestError) -> None:
        """Answers a head that never became a request."""
        exchange = self._exchange
        if exchange is None:
            exchange = self._exchange = Exchange(self, self.server, _UNREADABLE)
        error.close = True
        self._deaf = True
        exchange.fail(error)
        self.server.refused(exchange)

    # -- answers -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Bytes to the client, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def raw_write(self) -> Callable[[bytes], object]:
        """As Downstream."""
        return self.write if self._transport is None else self._transport.write

    def new_waiter(self) -> asyncio.Future[None]:
        """As Downstream."""
        return self.loop.create_future()

    async def room(self) -> None:
        """Returns when the transport takes more, or is gone."""
        if self._room is not None:
            await self._room

    def may_keep_alive(self, exchange: Exchange) -> bool:
        """Whether the connection can serve another request after this answer."""
        if self.reader is not None:
            left = getattr(self.reader, "left_bytes", _DRAINED_REST_LIMIT_BYTES)
            if left > _DRAINED_REST_LIMIT_BYTES or exchange.head.expects_continue:
                return False
        return not self.server.draining

    def answer_ended(self, exchange: Exchange) -> None:
        """The answer is written; on to the next request, or out."""
        self._task = None
        exchange.on_flow = None
        if self._transport is None:
            return
        if not exchange.keep_alive:
            self._close_lingering() if self._deaf or self.reader or self._buffer else self._close()
        elif self.reader is None:
            self._next()
        else:
            self._body_bytes = 0

    def _next(self) -> None:
        self._exchange = None
        self._let_go()
        if self._room is not None:
            # The client does not read its answers: it gets no new ones until it does.
            return
        self._deadline.set(self.server.idle_s)
        if len(self._buffer) <= self.server.settings.pipelined_limit_bytes:
            self._resume_reading()
        if self._buffer:
            # From a fresh stack: a thousand pipelined requests must not nest.
            self.loop.call_soon(self._resume_heads)

    def _resume_heads(self) -> None:
        if self._exchange is None and self._transport is not None:
            LOOP.mark(PARSE)
            self._heads()
            LOOP.mark(OTHER)

    def abort_answer(self, *, reset: bool) -> None:
        """Ends the connection without the end that framing asks for. A plain close flushes what
        is buffered first, so the client gets every byte the replica sent."""
        if self._transport is None:
            return
        if reset:
            linger_off = struct.pack("ii", 1, 0)
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
            self._transport.abort()
        else:
            self._close()

    def _close(self) -> None:
        """Closes once everything is written, and at once if the client does not read it."""
        if self._transport is not None:
            self._transport.close()
            self._deadline.set(self.server.settings.write_stall_deadline_s)

    def _close_lingering(self) -> None:
        """Closes our half and swallows what still arrives: closing with unread bytes would
        reset the connection and could destroy the answer on its way."""
        assert self._transport is not None
        self._deaf = True
        self.reader = None
        self._buffer = b""
        self._deadline.set(_LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._paused_reading:
            self._paused_reading = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()

    def _late(self) -> None:
        """A deadline passed: of idling, a head, a body, a client that does not read."""
        if self._transport is None:
            return
        exchange = self._exchange
        if self._room is not None or self._deaf or self._transport.is_closing():
            self._transport.abort()
        elif exchange is not None and self.reader is not None:
            error = RequestError(
                408, "The request body did not arrive in time.", code="body_timeout", close=True
            )
            self._bad_body(error)
        elif exchange is None and self._buffer:
            self._refuse(
                RequestError(
                    408, "The request head did not arrive in time.", code="head_timeout", close=True
                )
            )
        else:
            self._close()

    def linger(self) -> None:
        """For a drain: without a request, or the beginning of one, there is not much time left."""
        if self._exchange is None and not self._buffer:
            if self.server.idle_s > 0.0:
                self._deadline.set(self.server.idle_s)
            else:
                self._close()

    def kill(self) -> None:
        """For the end of a drain."""
        if self._transport is not None:
            self._transport.abort()
