"""One small request of the gateway's own to a replica, over the replica's pool.

Invariants:
- The answer is collected whole and bounded. Cancelling a fetch closes its connection.
"""

import asyncio

from tokenlane.errors import UpstreamError
from tokenlane.http.headers import request_head
from tokenlane.http.heads import ResponseHead
from tokenlane.http.pool import ReplicaPool

_ANSWER_LIMIT_BYTES = 4 * 1024 * 1024


class AwaitableSink:
    """A ResponseSink whose end can be awaited. Subclasses take the body.

    done: fails with UpstreamError if the answer does. status: 0 until there is a head.
    """

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        """As ResponseSink. vLLM sends the head of a stream before its prefill."""
        self.status = head.status

    def on_end(self) -> None:
        """As ResponseSink."""
        if not self.done.done():
            self.done.set_result(None)

    def on_failure(self, error: UpstreamError) -> None:
        """As ResponseSink."""
        if not self.done.done():
            self.done.set_exception(error)


class _CollectingSink(AwaitableSink):
    """Keeps the body. pieces: of it."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self._size_bytes = 0

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """As ResponseSink."""
        self.status = head.status
        self.pieces.append(body)
        self.on_end()

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """As ResponseSink."""
        self.pieces += payload
        self._size_bytes += len(framed)
        if self._size_bytes > _ANSWER_LIMIT_BYTES:
            self.on_failure(UpstreamError("protocol", sent=True))


async def fetch(pool: ReplicaPool, path: str, body: bytes, deadline_s: float) -> tuple[int, bytes]:
    """POST a JSON body and return the answer's status and body. Raise UpstreamError or
    TimeoutError."""
    async with asyncio.timeout(deadline_s):
        connection = pool.idle() or await pool.connect()
        sink = _CollectingSink()
        json = b"content-type: application/json\r\n"
        head = request_head("POST", path.encode(), pool.lines, json, b"tokenlane", len(body))
        try:
            connection.send("POST", [head, body], sink)
            await sink.done
        finally:
            connection.abort(sink)  # does nothing if the answer has ended
    return sink.status, b"".join(sink.pieces)
