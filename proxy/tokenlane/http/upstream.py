"""The client side of HTTP/1.1: one connection to a replica.

Invariants:
- A connection carries one request at a time and goes back to its pool only when the answer
  ended exactly where its framing said, with no byte behind it.
- Whatever a peer sends, a sink gets exactly one call of `on_end` and `on_failure`, and none after
  that; it gets no call after `abort`.
- A slow replica costs no memory beside the request's own; one that takes nothing has a deadline.
"""

import asyncio
import select
from functools import partial
from typing import Any, Final, cast

from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import UpstreamError
from tokenlane.http.chunked import BodyReader, ChunkedReader, EofReader, FixedReader
from tokenlane.http.deadline import NEVER, Deadline
from tokenlane.http.heads import parse_response
from tokenlane.http.intake import Intake
from tokenlane.http.response_sink import ResponseSink
from tokenlane.http.turns import TurnQueue
from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.stalls.stages import LOOP, OTHER, RELAY

_INTERIM_LIMIT_COUNT: Final = 8
# One small write is cheaper than two gathered ones; large bodies are not copied.
_JOINED_LIMIT_BYTES: Final = 16 * 1024
# Bytes of a long body that are written at once.
_PIECE_BYTES: Final = 1024 * 1024
# Scanning for events costs more than passing bytes on, so a turn scans at most this much.
_EVENTS_BYTES: Final = 32 * 1024
# No server closes a connection that was in use this recently, unless it shuts down.
_FRESH_S: Final = 0.005
_ANY_BYTES: Final = 1 << 40


class ConnectionPool:
    """A pool, as its connections see it: the base class of pools. A Protocol would be slower in
    the compiled build, and every request comes by here. turns: of answers that are more than one
    turn's work."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = settings
        self.turns = TurnQueue()

    def give_back(self, connection: "UpstreamConnection") -> None:
        """Take a connection whose answer ended cleanly: it waits for the next request."""
        raise NotImplementedError

    def forget(self, connection: "UpstreamConnection") -> None:
        """Drop a connection that is closed."""
        raise NotImplementedError


class UpstreamConnection:
    """One connection to a replica, an asyncio.Protocol in all but name (see setup.py).

    heard_s: time.monotonic() of the last bytes. ending: they end the body, by its framing.
    `_unsent` is what the replica has not taken of a body, `_choked` that it takes nothing now.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._sink: ResponseSink | None = None
        self._method = ""
        self._buffer = b""
        self._reader: BodyReader | None = None
        self._interim_count = 0
        self._body_began = False
        self._keep_alive = False
        self._intake = Intake(pool.turns, self.data_received)
        self._turn_bytes = _ANY_BYTES
        self._unsent: memoryview | None = None
        self._choked = False
        self._between_s = 0.0
        self._poll = select.poll()
        self.loop = asyncio.get_running_loop()
        self._deadline = Deadline(self.loop, self._timed_out)
        self._idle_since_s = 0.0
        self.heard_s = 0.0
        self.ending = False

    # -- requests ----------------------------------------------------------------------------

    def send(self, method: str, pieces: list[bytes], sink: ResponseSink) -> None:
        """Send a request (head and body pieces). `sink` gets the answer."""
        assert self._transport is not None
        self._sink = sink
        self._method = method
        self._between_s = self._pool.settings.between_chunks_deadline_s
        self._buffer = b""
        self._reader = None
        self._interim_count = 0
        self._body_began = False
        if len(pieces[-1]) > _PIECE_BYTES:
            self._transport.writelines(pieces[:-1])
            self._unsent = memoryview(pieces[-1])
            self._send_on()
            return
        if len(pieces) == 2 and len(pieces[-1]) <= _JOINED_LIMIT_BYTES:
            self._transport.write(b"".join(pieces))
        else:
            self._transport.writelines(pieces)
        self._wait()

    def _send_on(self) -> None:
        """Write what the replica takes of the body. Its deadline starts when it has all of it."""
        transport, unsent = self._transport, self._unsent
        assert transport is not None
        while unsent and not self._choked and not transport.is_closing():
            transport.write(unsent[:_PIECE_BYTES])
            unsent = unsent[_PIECE_BYTES:]
        self._unsent = unsent or None
        if not self._body_began:
            self._wait()

    def _wait(self) -> None:
        """Set the deadline of the first byte, or between bytes, here or those the replica takes."""
        first = not (self._body_began or self._choked or self._unsent)
        first_byte_s = self._pool.settings.first_byte_deadline_s
        self._deadline.set(first_byte_s if first else self._between_s)

    def pause_writing(self) -> None:
        """Stop writing: the transport's buffer is full."""
        self._choked = True

    def resume_writing(self) -> None:
        """Resume writing: the transport's buffer has drained."""
        self._choked = False
        if self._sink is not None:
            self._send_on()

    def abort(self, sink: ResponseSink) -> None:
        """Close at once, for a client that disconnected: vLLM then frees the request. Do nothing if
        `sink` has had its end: the connection may serve another request by now."""
        if self._sink is not sink:
            return
        self._sink = None
        self._intake.end()
        if self._transport is not None:
            self._transport.abort()

    def pause(self, paused: bool) -> None:
        """Stop reading, or go on, as the client does. A paused replica has no deadline."""
        if self._transport is None:
            return
        self._intake.hold(paused)
        if paused:
            self._deadline.clear()
        elif self._sink is not None:
            self._wait()

    def usable(self, now_s: float) -> bool:
        """Return whether an idle connection can carry a request: it was used lately, and neither
        bytes nor a close are pending."""
        if self._transport is None or self._transport.is_closing():
            return False
        idle_s = now_s - self._idle_since_s
        if idle_s < _FRESH_S:
            return True
        return idle_s <= self._pool.settings.idle_deadline_s and not self._poll.poll(0)

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        self._intake.begin(transport)
        try:
            fd = transport.get_extra_info("socket").fileno()
        except OSError:  # uvloop tells of it although it is closed again
            transport.abort()
            return
        self._poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        if transport.get_extra_info("ssl_object") is not None:
            # Or TLS reads on while we do not, and drops what it has when the replica closes.
            cast(Any, transport).set_read_buffer_limits(high=1)

    def data_received(self, data: bytes) -> None:
        LOOP.mark(RELAY)
        self._received(data)
        LOOP.mark(OTHER)

    def _received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # There is no request: the peer sends out of turn, or ends a drained connection.
            self.close()
            return
        self.heard_s = monotonic()
        try:
            if self._reader is None:
                data = self._head(self._buffer + data if self._buffer else data)
            reader = self._reader
            if reader is None:
                return
            rest = b""
            if len(data) > self._turn_bytes:
                data, rest = data[: self._turn_bytes], data[self._turn_bytes :]
            payload, consumed = reader.feed(data)
        except ValueError:
            self._fail("protocol")
            return
        if self._sink is not sink:  # aborted when it got the head
            return
        if consumed < len(data):
            rest = data[consumed:] + rest
            data = data[:consumed]
        self.ending = reader.done
        if isinstance(reader, ChunkedReader) and reader.trailers_at >= 0:
            # Trailers are dropped; the empty line behind them ends the last chunk.
            data = data[: reader.trailers_at] + (b"\r\n" if reader.done else b"")
        if rest:
            if reader.done:
                self._keep_alive = False
            else:
                self._intake.later(rest)
        if data:
            sink.on_body(data, payload)
        if self.ending:
            self._ended()
        elif data:
            began, self._body_began = self._body_began, True
            if self._intake.held:
                return  # a paused replica has no deadline
            if began:
                # Only ever later than before, so the armed timer need not be touched.
                self._deadline.due_s = self.heard_s + self._between_s
            else:
                self._deadline.set(self._between_s)

    def eof_received(self) -> None:
        """Let the transport close; `connection_lost` decides what that means."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent = None
        self._pool.forget(self)
        self._intake.lose()
        self._lost(exc)

    def _lost(self, exc: Exception | None) -> None:
        # With TLS, the close may come in the same read as bytes that wait for their turn.
        if self._intake.waiting:
            self._pool.turns.add(partial(self._lost, exc))
            return
        self._deadline.close()
        sink, reader = self._sink, self._reader
        if sink is not None and isinstance(reader, EofReader) and exc is None:
            self._sink = None
            sink.on_end()
        elif reader is not None:
            self._fail("truncated")
        else:
            self._fail("closed" if exc is None else "reset")

    def close(self) -> None:
        """Close an idle connection."""
        if self._transport is not None:
            self._transport.close()

    # -- answers -----------------------------------------------------------------------------

    def _head(self, data: bytes) -> bytes:
        """Parse the heads in `data` and return the body bytes behind the final one."""
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if (end if end >= 4 else len(data)) > self._pool.settings.head_limit_bytes:
                raise ValueError("response head too large")
            if end < 4:
                self._buffer = data
                return b""
            head, length_bytes = parse_response(data[:end], self._method)
            data = data[end:]
            if head.status >= 200:
                break
            self._interim_count += 1
            if head.status == 101 or self._interim_count > _INTERIM_LIMIT_COUNT:
                raise ValueError("interim answers out of bounds")
        self._buffer = b""
        self._keep_alive = head.keep_alive
        sink = self._sink
        assert sink is not None
        if len(data) == length_bytes and not (head.chunked or head.endless or head.stream):
            self._sink = None
            self._deadline.due_s = NEVER
            self._release()
            sink.on_whole(head, data)
            return b""
        # The first-byte deadline stands until the body begins: vLLM sends the head of a stream
        # before its prefill.
        self._turn_bytes = _EVENTS_BYTES if head.stream else _ANY_BYTES
        if head.chunked or head.endless:
            self._reader = ChunkedReader() if head.chunked else EofReader()
            sink.on_head(head, None)
        else:
            self._reader = FixedReader(length_bytes)
            sink.on_head(head, length_bytes)
        return data

    def _ended(self) -> None:
        sink, self._sink = self._sink, None
        self._deadline.clear()
        if self._intake.held:  # the answer ended in the bytes that paused it
            self.pause(False)
        self._release()
        if sink is not None:
            sink.on_end()

    @property
    def at_edge(self) -> bool:
        """Whether the body so far ends between two chunks."""
        return self._reader is None or self._reader.at_edge

    @property
    def last_chunk_at(self) -> int:
        """Where the last chunk begins in the bytes that end a chunked body, -1 where it began in
        bytes before these."""
        return self._reader.last_at if isinstance(self._reader, ChunkedReader) else -1

    def _release(self) -> None:
        self._reader = None
        if self._unsent is not None or self._choked:
            # It answered before it read the whole request, and may never read the rest.
            self._unsent = None
            if self._transport is not None:
                self._transport.abort()
        elif self._keep_alive and self._transport is not None:
            self._idle_since_s = monotonic()
            self._pool.give_back(self)
        else:
            self.close()

    def _fail(self, reason: str) -> None:
        sink, self._sink = self._sink, None
        self._intake.end()
        if self._transport is not None:
            self._transport.abort()
        if sink is not None:
            sink.on_failure(UpstreamError(reason, sent=True))

    def _timed_out(self) -> None:
        if self._sink is None:
            return
        self._fail("chunk_timeout" if self._body_began else "first_byte_timeout")
