"""One request and its answer, as a handler sees them.

Invariants:
- An answer that was begun and not finished never ends cleanly: no last chunk, a short length,
  or a reset where only the end of the connection frames it.
- After the end of the answer, or of the connection, writes do nothing; they never raise.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from tokenlane.errors import RequestError
from tokenlane.http.body_pieces import BodyPieces
from tokenlane.http.chunked import LAST_CHUNK, frame
from tokenlane.http.framing import BODILESS
from tokenlane.http.headers import Field, lines, status_line
from tokenlane.http.heads import RequestHead
from tokenlane.http.request_body import RequestBody
from tokenlane.http.server_state import ServerState
from tokenlane.parts import BODY_PART_BYTES, BodyParts, RawBody, whole
from tokenlane.runtime.clock import monotonic

# Bodies of this size or more take turns of the loop: as much of them in each as takes a millisecond
# to read. What is known of a body costs little.
_LONG_BYTES: Final = 128 * 1024
_TURN_BYTES: Final = 512 * 1024
_KNOWN_BODY_BYTES: Final = 64 * 1024
# Longer ones are joined in a thread: new memory costs more than the copy, up to 3 ns a byte on a
# busy machine.
_JOINED_BYTES: Final = 4 * 1024 * 1024
# Longer bodies are read in a thread, and not compared with known ones as they arrive.
_COMPARED_BYTES: Final = 1024 * 1024

_JSON: Final[tuple[Field, ...]] = ((b"content-type", b"application/json"),)


class Downstream:
    """The connection that an exchange came on: the base class of those. A Protocol would be slower
    in the compiled build, and every answer goes by here. body: the request's, as far as it is
    read. `_writable` is set while the client reads too slowly."""

    body: RequestBody
    _writable: asyncio.Future[None] | None = None

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly."""
        return self._writable is not None

    def write(self, data: bytes) -> None:
        """Send bytes to the client, if it is still connected."""
        raise NotImplementedError

    def raw_write(self) -> Callable[[bytes], object]:
        """Return a `write` that does not check whether the client is still connected."""
        return self.write

    async def drain(self) -> None:
        """Wait until the client takes more, or is gone."""
        if self._writable is not None:
            await self._writable

    def may_keep_alive(self, exchange: "Exchange") -> bool:
        """Return whether the connection can serve another request after this answer."""
        return False

    def set_deadline(self) -> None:
        """Give what the client has to do next its deadline."""

    def answer_ended(self, exchange: "Exchange") -> None:
        """Note that the answer is written."""

    def abort_answer(self, *, reset: bool) -> None:
        """Break the answer off."""


class Exchange:
    """One request and its answer.

    head: of the request (method, path, query, headers …). started_s: time.monotonic() when the head
    was complete. request_id: the client's or made here. status: of the answer, 0 while there is
    none. error_code: of the error that it is. body: of the request, None until it was read.
    on_flow: called with True when the client reads too slowly, or does so when the answer begins;
    with False when it caught up.
    on_cut: called to break the answer off, where more is to be done than to end the connection.
    stopped: the request is cancelled because the server stops, so there is time for an error.
    splice: writes bytes of a begun answer that are framed already, exactly as `begin` announced.
    """

    began = False
    ended = False
    stopped = False
    status = 0
    on_flow: Callable[[bool], None] | None = None
    on_cut: Callable[[], None] | None = None
    _body_done = False
    _waiter: asyncio.Future[None] | None = None
    _chunked = False
    _eof_framed = False
    _continued = False
    _pieces: BodyPieces | None = None

    def __init__(self, connection: Downstream, state: ServerState, head: RequestHead) -> None:
        self._connection = connection
        self._state = state
        self.head = head
        self.method = head.method
        self.path = head.path
        self.headers = head.headers
        self.keep_alive = head.keep_alive
        self.started_s = monotonic()
        self.request_id = state.request_id(head.request_id)
        self.splice: Callable[[bytes], object] = connection.write
        # Here, as in RequestRecord: mypyc drops a class's None where its type has two beside it.
        self.error_code: str | int | None = None
        self.body: RawBody | None = None

    @property
    def query(self) -> str:
        """What follows the `?` of the target."""
        return self.head.query

    @property
    def announced_bytes(self) -> int:
        """The size of the body, read or not; of a chunked one, the bytes that have arrived."""
        if self.body is not None:
            return len(self.body)
        begun_bytes = 0 if self._pieces is None else self._pieces.size_bytes
        return begun_bytes + self._connection.body.left_bytes

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a field. name: in lower case."""
        for candidate, value in self.headers:
            if candidate == name:
                return value
        return None

    async def read_body(self) -> bytes:
        """Return the body in one. Raise as `read_parts`."""
        return whole(await self.read_parts())

    async def read_parts(self) -> RawBody:
        """Return the body, in parts where it begins as a known one. Raise RequestError 400, 408,
        413 or 503."""
        if not self._body_done:
            if self.head.expects_continue and not self._continued:
                self._continued = True
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._connection.set_deadline()
            self._waiter = self._state.loop.create_future()
            await self._waiter
        elif self._waits_in_line():
            self._waiter = self._state.loop.create_future()
            await self._waiter
        if self.body is None:
            pieces = self._pieces or BodyPieces(None)
            if pieces.rest_bytes <= _JOINED_BYTES:
                rest = b"".join(pieces.rest)
            else:
                rest = await self._state.loop.run_in_executor(None, b"".join, pieces.rest)
            self.body = BodyParts(pieces.same, rest) if pieces.same else rest
            self._pieces = None
        return self.body

    def respond(self, status: int, headers: Sequence[Field] | bytes, body: bytes) -> None:
        """Send a whole answer. headers: fields, or lines made of them."""
        head = self._head(status, headers, _length_line(status, len(body)))
        self._connection.write(head + body if self.method != "HEAD" else head)
        self.ended = True
        self._connection.answer_ended(self)

    def preflight(self) -> bool:
        """Answer a browser that asks whether a page may send its request. Return False if this is
        no such question, or no page of its origin may."""
        cors = self._state.cors
        if cors is None or self.method != "OPTIONS" or not cors.allows(self.header(b"origin")):
            return False
        self.respond(200, cors.preflight(self.header(b"access-control-request-headers")), b"")
        return True

    def fail(self, error: RequestError) -> None:
        """Answer a request that cannot be served. An answer that was begun breaks off."""
        self.error_code = error.code
        if self.began:
            self.abort()
            return
        if error.close:
            self.keep_alive = False
        headers = [*_JSON, *error.headers]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        body = self.head.error_format.error_json(error, self.request_id)
        self.respond(error.status, headers, body)

    def begin(
        self,
        status: int,
        headers: Sequence[Field] | bytes,
        *,
        length_bytes: int | None = None,
    ) -> None:
        """Send the head of an answer in pieces: of `length_bytes`, else chunked (on HTTP/1.0, which
        knows no chunks, the end of the connection ends it)."""
        if length_bytes is not None:
            line = _length_line(status, length_bytes)
        elif self.head.minor == 1:
            self._chunked = True
            line = b"transfer-encoding: chunked\r\n"
        else:
            self._eof_framed = True
            self.keep_alive = False
            line = b""
        if self.on_flow is not None and self._connection.paused:
            self.on_flow(True)
        self._connection.write(self._head(status, headers, line))
        self.splice = self._connection.raw_write()

    def write(self, payload: bytes) -> None:
        """Send payload of a begun answer, framed here."""
        if payload:
            self._connection.write(frame(payload) if self._chunked else payload)

    async def drain(self) -> None:
        """Wait until the client takes more, or is gone."""
        await self._connection.drain()

    def finish(self, *, spliced: bool = False) -> None:
        """End the answer. spliced: its last chunk was written by `splice`."""
        if self._chunked and not spliced:
            self._connection.write(LAST_CHUNK)
        self._end()

    def abort(self) -> None:
        """Break the answer off, so that nobody takes it for whole: without the last chunk or the
        promised length, and by a reset if only the end of the connection frames the answer."""
        self.ended = True
        self._connection.abort_answer(reset=self._eof_framed)

    def body_whole(self, body: bytes) -> None:
        """Take the whole body, which arrived at once."""
        self.body = body
        self._body_done = True

    def body_bytes(self, piece: bytes | memoryview) -> None:
        """Take a piece of the body."""
        if self._pieces is None:
            length_bytes = len(piece) + self._connection.body.left_bytes
            compared = BODY_PART_BYTES < length_bytes <= _COMPARED_BYTES
            self._pieces = BodyPieces(self._state.known_part if compared else None)
        self._pieces.add(piece)

    def body_end(self) -> None:
        """Note that the body is complete."""
        self._body_done = True
        if self._waiter is None or self._waiter.done():
            return
        if not self._waits_in_line():
            self._waiter.set_result(None)

    def _waits_in_line(self) -> bool:
        """Put a whole body in the line for its turn of the loop, if it is long and there is no room
        in this one. Return whether it has to wait."""
        if self.body is not None:
            size_bytes = new_bytes = len(self.body)
        elif self._pieces is not None:
            size_bytes, new_bytes = self._pieces.size_bytes, self._pieces.rest_bytes
        else:
            return False
        share = min(1.0, max(new_bytes, _KNOWN_BODY_BYTES) / _TURN_BYTES)
        if size_bytes < _LONG_BYTES or self._state.turns.take(share):
            return False
        self._state.turns.add(self._hand_over, share)
        return True

    def _hand_over(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def body_error(self, error: RequestError) -> bool:
        """Note that the body cannot be read. Return False if nobody waits for it (yet)."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            return True
        return False

    def _head(self, status: int, headers: Sequence[Field] | bytes, length_line: bytes) -> bytes:
        self.began = True
        self.status = status
        state = self._state
        if state.draining or self._connection.body.reader is not None:
            self.keep_alive = self.keep_alive and self._connection.may_keep_alive(self)
        if not self.keep_alive:
            length_line += b"connection: close\r\n"
        elif self.head.minor == 0:
            length_line += b"connection: keep-alive\r\n"
        if state.add_request_id:
            length_line += b"x-request-id: %b\r\n" % self.request_id
            field = self.head.request_id_field
            if field:
                length_line += b"%b: %b\r\n" % (field, self.request_id)
        if state.cors is not None:
            length_line += state.cors.lines(self.header(b"origin"))
        if not isinstance(headers, bytes):
            headers = lines(headers)
        return b"%b%b%b\r\n" % (status_line(status), headers, length_line)

    def _end(self) -> None:
        self.ended = True
        self._connection.answer_ended(self)


def _length_line(status: int, length_bytes: int) -> bytes:
    """Return the field (RFC 9110 8.6: an answer that cannot have a body has no length)."""
    return b"" if status in BODILESS else b"content-length: %d\r\n" % length_bytes


Handler = Callable[[Exchange], Coroutine[Any, Any, None]]
