"""One client connection: turns bytes into requests and answers into bytes, and keeps deadlines.

Invariants:
- A connection serves one request at a time. Bytes behind it wait unparsed, up to a limit, then
  reading stops: pipelining is bounded and answers keep their order.
- The handler runs in the only task of a request, which is cancelled when the client disconnects.
  A client that closes its sending half has disconnected (as in nginx), whatever is unsent.
- When what follows cannot be read as requests any more, the connection closes.
- Where it stands is one of `connection_states.py`, and only its table leads to another.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

from tokenlane.errors import RequestError
from tokenlane.http import connection_states as states
from tokenlane.http.connection_owner import ConnectionOwner
from tokenlane.http.deadline import NEVER, Deadline
from tokenlane.http.exchange import Downstream, Exchange
from tokenlane.http.framing import refusal
from tokenlane.http.heads import head_too_large
from tokenlane.http.intake import Intake
from tokenlane.http.request_body import DISCARD_LIMIT_BYTES, RequestBody
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, PARSE

_LINGER_S: Final = 2.0
_LINGER_OFF: Final = struct.pack("ii", 1, 0)


class ServerConnection(Downstream):
    """One client connection, an asyncio.Protocol in all but name (see setup.py).

    state: of connection_states. body: of the request that is served. `_exchange`: that request and
    its answer, None before it.
    """

    def __init__(self, owner: ConnectionOwner["ServerConnection"]) -> None:
        self.state: int = states.IDLE
        self._owner = owner
        self._shared = owner.state
        self._run = owner.run
        self.body = RequestBody(owner.state.body_memory)
        self._buffer = b""
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline = Deadline(self._shared.loop, self._timed_out)
        self._intake = Intake(self._shared.turns, self.data_received)

    def _on(self, event: int) -> int:
        """Enter the state that an event leads to, and return it."""
        self.state = state = states.AFTER[self.state][event]
        return state

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._intake.begin(transport)
        self._heads = self._owner.heads_for(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=self._shared.settings.write_high_water_bytes)
        self._owner.opened(self)
        self._deadline.set(self._shared.idle_s)

    def data_received(self, data: bytes) -> None:
        LOOP.mark(PARSE)
        self._received(data)
        LOOP.mark(OTHER)

    def _received(self, data: bytes) -> None:
        if self.state >= states.REFUSING:
            return
        if self.state in (states.BODY, states.DISCARDING):
            self._body_received(data)
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._next_request()
        waits = self.state > states.HEAD or self._writable is not None
        if waits and len(self._buffer) > self._shared.settings.pipelined_limit_bytes:
            self._intake.hold(True)

    def eof_received(self) -> None:
        if self.state < states.CLOSING:
            self._close() if self._task is None else self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on(states.LOST)
        self._deadline.close()
        self._intake.end()
        self.body.release()
        self._owner.closed(self)
        if self._task is not None:
            if self._exchange is not None and self._exchange.ended:
                # The answer broke off: its handler was woken and records the reason before it ends.
                self._shared.loop.call_soon(self._task.cancel)
            else:
                self._task.cancel()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._shared.loop.create_future()
        self.set_deadline()
        if self._exchange is not None and self._exchange.on_flow is not None:
            self._exchange.on_flow(True)

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self.state <= states.HEAD:
            self._on(states.RESUMED)
            self._request_over()
            return
        self.set_deadline()
        if self._exchange is not None and self._exchange.on_flow is not None:
            self._exchange.on_flow(False)

    # -- requests ----------------------------------------------------------------------------

    def _next_request(self) -> None:
        """Take the next request off the buffer, if it is time for it and its head is complete."""
        if self.state > states.HEAD or self._writable is not None:
            return
        buffer = self._buffer
        # RFC 9112 2.2: an empty line before a request line is forgiven (once per read).
        if buffer[:2] == b"\r\n":
            buffer = self._buffer = buffer[2:]
        end = buffer.find(b"\r\n\r\n") + 4
        try:
            if (end if end >= 4 else len(buffer)) > self._shared.settings.head_limit_bytes:
                raise head_too_large("The request head is too large.")
            if end < 4:
                self._incomplete_head()
                return
            head, length_bytes = self._heads.parse(buffer[:end])
            self._deadline.due_s = NEVER
            self._exchange = exchange = Exchange(self, self._shared, head)
            if head.chunked or length_bytes:
                self.body.reserve(length_bytes, self._shared.settings.body_limit_bytes)
        except RequestError as error:
            self._refuse(error)
            return
        if head.chunked or length_bytes:
            self._begin_body(exchange, length_bytes, buffer, end)
        else:
            self._buffer = buffer[end:]
            self._on(states.REQUEST_END)
            exchange.body_end()
        if self.state in (states.BODY, states.ANSWERING):
            # Not the loop's create_task: a name would be made up for each.
            self._task = asyncio.Task(self._run(exchange), loop=self._shared.loop, name="request")

    def _begin_body(self, exchange: Exchange, length_bytes: int, buffer: bytes, at: int) -> None:
        if len(buffer) - at >= length_bytes > 0:
            # The usual case: the body came with its head.
            self._buffer = buffer[at + length_bytes :]
            self._on(states.REQUEST_END)
            exchange.body_whole(buffer[at : at + length_bytes])
            return
        self._buffer = b""
        self._on(states.HEAD_END)
        self.body.begin(length_bytes, len(buffer) - at, chunked=exchange.head.chunked)
        if not exchange.head.expects_continue:  # else once it is asked for
            self.set_deadline()
        self._intake.hold(False)
        if exchange.head.chunked:
            self._body_received(buffer[at:])
        else:
            exchange.body_bytes(memoryview(buffer)[at:])

    def _incomplete_head(self) -> None:
        """Wait for the rest of a head. Raise RequestError if no rest could make it a good one."""
        if not self._buffer:
            return
        self._heads.check_beginning(self._buffer)
        self._intake.hold(False)
        if self.state == states.IDLE:  # a byte now and then does not extend the deadline
            self._deadline.set(self._shared.settings.head_deadline_s)
        self._on(states.HEAD_PART)

    def _body_received(self, data: bytes) -> None:
        exchange, discard = self._exchange, self.state == states.DISCARDING
        assert exchange is not None
        try:
            limit_bytes = self._shared.settings.body_limit_bytes
            payload, consumed_bytes = self.body.feed(data, limit_bytes, discard=discard)
        except RequestError as error:
            self._bad_body(error)
            return
        if payload and not discard:
            exchange.body_bytes(payload)
        if self.body.reader is None:
            self._buffer = data[consumed_bytes:]
            exchange.body_end()
            if self._on(states.REQUEST_END) == states.IDLE:
                self._request_over()
            else:
                self.set_deadline()
        elif consumed_bytes < len(data):
            self._intake.later(data[consumed_bytes:])

    def _bad_body(self, error: RequestError) -> None:
        """Answer a body after which the connection cannot be read as requests any more."""
        exchange = self._exchange
        assert exchange is not None
        if self._on(states.MALFORMED) == states.LINGERING:
            self._linger()
        elif not exchange.body_error(error):
            task = self._task
            exchange.fail(error)
            self._owner.refused(exchange) if task is None else task.cancel()

    def _refuse(self, error: RequestError) -> None:
        """Answer a request that does not reach the handler."""
        exchange = self._exchange
        if exchange is None:
            exchange = self._exchange = Exchange(self, self._shared, self._heads.unreadable)
        error.close = True
        self._on(states.MALFORMED)
        exchange.fail(error)
        self._owner.refused(exchange)

    # -- answers -----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still connected."""
        if self.state != states.CLOSED:
            self._transport.write(data)

    def raw_write(self) -> Callable[[bytes], object]:
        """As Downstream."""
        return self.write if self.state == states.CLOSED else self._transport.write

    def may_keep_alive(self, exchange: Exchange) -> bool:
        """As Downstream."""
        too_long = self.body.left_bytes > DISCARD_LIMIT_BYTES
        rest = self.body.reader is not None and (too_long or exchange.head.expects_continue)
        return not (rest or self._shared.draining)

    def answer_ended(self, exchange: Exchange) -> None:
        """Go on to the next request, or close."""
        self._task = None
        self.body.release()
        exchange.on_flow = exchange.on_cut = None
        if self.state >= states.CLOSING:
            return
        if self.state == states.REFUSING or not exchange.keep_alive:
            if self.state == states.ANSWERING and not self._buffer:
                self._close()
            else:
                self._on(states.LAST_ANSWER)
                self._linger()
        elif self._on(states.ANSWER_END) == states.IDLE:
            self._request_over()
        else:
            self.body.begin_discarding()

    def _request_over(self) -> None:
        self._exchange = None
        if self._writable is not None:
            return  # the client gets no new answers until it reads those it has
        self._deadline.set(self._shared.idle_s)
        if self._intake.held and len(self._buffer) <= self._shared.settings.pipelined_limit_bytes:
            self._intake.hold(False)
        if self._buffer:
            # On a new stack, because a thousand pipelined requests must not nest.
            self._shared.loop.call_soon(self.data_received, b"")

    def abort_answer(self, *, reset: bool) -> None:
        """End the connection without the end that framing asks for. A plain close sends what is
        buffered first, so the client gets every byte that was written."""
        if self.state == states.CLOSED:
            return
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
            self.abort()
        else:
            self._close()

    def _close(self) -> None:
        """Close once everything is written, or at a deadline if the client does not read it."""
        self._on(states.CLOSE)
        self._transport.close()
        self.set_deadline()

    def _linger(self) -> None:
        """Close our half and drop what still arrives: closing with unread bytes would reset the
        connection, which could destroy the answer on its way."""
        self._buffer, self._exchange = b"", None
        self.set_deadline()
        # Unsent bytes have the deadline of a slow reader. The short one starts behind them.
        self._transport.set_write_buffer_limits(high=1)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._intake.drop()

    def set_deadline(self) -> None:
        """Give the state its deadline; a client that does not read has that of writing in any."""
        settings = self._shared.settings
        if self._writable is not None or self.state == states.CLOSING:
            self._deadline.set(settings.write_stall_deadline_s)
        elif self.state in (states.BODY, states.DISCARDING):
            self._deadline.set(settings.body_deadline_s)
        elif self.state == states.LINGERING:
            self._deadline.set(_LINGER_S)
        else:
            self._deadline.clear()

    def _timed_out(self) -> None:
        """Act on a passed deadline: of idling, a head, a body, a client that does not read."""
        if self._writable is not None or self.state in (states.REFUSING, states.CLOSING):
            self.abort()
        elif self.state in (states.BODY, states.DISCARDING):
            self._bad_body(refusal("The request body did not arrive in time.", "body_timeout", 408))
        elif self.state <= states.HEAD and self._buffer:
            self._refuse(refusal("The request head did not arrive in time.", "head_timeout", 408))
        else:  # also from lingering: below TLS, bytes may be unsent of which nothing is told here
            self._close()

    def begin_drain(self) -> None:
        """Close soon, unless a request has begun to arrive, or an answer is still being read."""
        if self.state <= states.HEAD and not self._buffer and self._writable is None:
            if self._shared.idle_s > 0.0:
                self._deadline.set(self._shared.idle_s)
            else:
                self._close()

    def cut(self) -> bool:
        """End an unfinished request. Return whether an answer, or the writing of one, was cut."""
        exchange = self._exchange
        if exchange is None or exchange.ended or self._task is None:
            self.abort()
            return self._writable is not None
        if exchange.on_cut is not None:
            exchange.on_cut()
        else:
            exchange.stopped = True
            self._task.cancel()
        return True

    def abort(self) -> None:
        """Close at once, whatever is unfinished."""
        if self.state != states.CLOSED:
            self._on(states.CLOSE)
            self._transport.abort()
