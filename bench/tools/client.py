"""A lean HTTP/1.1 client: one connection, one request at a time, times of what comes back.

Invariants:
- The first byte is that of the body: a head sent early does not count as an answer.
- An answer cut off before its framed end is never `whole`.
- A chunked answer with status 200 is not parsed but counted: at 20,000 events a second a parser
  would make the generator the limit. Its end is the last chunk at the end of what was read.
"""

import asyncio
import http.client
import time
from collections.abc import Callable
from typing import cast

import httptools
import msgspec


class Answer(msgspec.Struct):
    """What came back for one request. Times are of time.perf_counter(); 0 until they happen.

    events: SSE events seen. done_s: the end, or the moment the connection was lost. error: the
    body where the status is not 200.
    """

    status: int = 0
    first_byte_s: float = 0.0
    done_s: float = 0.0
    size_bytes: int = 0
    events: int = 0
    whole: bool = False
    error: bytes = b""


EVENT = b"data: "
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Connection(asyncio.Protocol):
    """A client's connection. `on_answer` is called once for each request sent.

    kept: where there is one, what comes back is added to it, chunk lines and all.
    """

    def __init__(
        self,
        on_answer: Callable[["Connection", Answer], None],
        kept: bytearray | None = None,
    ) -> None:
        self.on_answer = on_answer
        self.kept = kept
        self.transport: asyncio.Transport | None = None
        self.answer: Answer | None = None
        self.reusable = False
        self.counting = False
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def send(self, request: bytes) -> None:
        """Sends one whole request. Only on an idle connection; a lost one answers at once."""
        assert self.answer is None
        self.answer = Answer()
        self.counting = False
        self.parser = httptools.HttpResponseParser(self)
        if self.transport is None:
            self.finish()
        else:
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self.answer is None:
            self.close()
            return
        if self.counting:
            self.count(data)
            return
        if self.answer.status == 0 and data.startswith(b"HTTP/1.1 200 "):
            head, end, rest = data.partition(b"\r\n\r\n")
            if end and b"\r\ntransfer-encoding: chunked" in head.lower():
                self.answer.status = 200
                self.counting = True
                self.tail = b""
                if rest:
                    self.count(rest)
                return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def count(self, data: bytes) -> None:
        """A read of a chunked answer, chunk lines and all."""
        answer = self.answer
        assert answer is not None
        if not answer.first_byte_s:
            answer.first_byte_s = time.perf_counter()
        answer.size_bytes += len(data)
        answer.events += data.count(EVENT)
        if self.kept is not None:
            self.kept += data
        self.tail = data if len(data) >= len(LAST_CHUNK) else self.tail + data
        if self.tail.endswith(LAST_CHUNK):
            answer.whole = True
            self.reusable = True
            self.finish()

    def on_headers_complete(self) -> None:
        """The head is whole (httptools callback)."""
        assert self.answer is not None
        self.answer.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of the body (httptools callback)."""
        answer = self.answer
        assert answer is not None
        if not answer.first_byte_s:
            answer.first_byte_s = time.perf_counter()
        answer.size_bytes += len(body)
        answer.events += body.count(EVENT)
        if answer.status != 200:
            answer.error += body
        if self.kept is not None:
            self.kept += body

    def on_message_complete(self) -> None:
        """The answer reached its framed end (httptools callback)."""
        assert self.answer is not None
        self.answer.whole = True
        self.reusable = self.parser.should_keep_alive()
        self.finish()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self.transport = None
        if self.answer is not None:
            self.finish()

    def finish(self) -> None:
        """Hands the answer over; the connection is idle from here on."""
        answer, self.answer = self.answer, None
        assert answer is not None
        answer.done_s = time.perf_counter()
        self.on_answer(self, answer)

    def close(self) -> None:
        """Cuts the connection; an answer under way is reported as not whole."""
        self.reusable = False
        if self.transport is not None:
            self.transport.abort()


class Fetched(msgspec.Struct, frozen=True):
    """A small answer read in one go. status 0: nothing answered."""

    status: int
    body: bytes
    headers: dict[str, str]


def fetch(port: int, path: str, body: bytes | None = None, deadline_s: float = 10.0) -> Fetched:
    """A blocking request to a loopback port, for checks before and after a measurement."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=deadline_s)
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Fetched(answer.status, answer.read(), headers)
    except OSError:
        return Fetched(0, b"", {})
    finally:
        connection.close()
