"""One small request of the gateway's own to a replica, over its pool.

Invariants:
- The answer is collected whole and bounded; a cancelled question closes its connection.
"""

import asyncio

from tokenlane.errors import UpstreamError
from tokenlane.http.headers import request_head
from tokenlane.http.heads import ResponseHead
from tokenlane.http.pool import ReplicaPool

_ANSWER_LIMIT_BYTES = 4 * 1024 * 1024


class Awaited:
    """A ResponseSink whose end can be awaited: `done`, which fails with UpstreamError. What a body
    is good for, others know."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        """The head; of a stream it comes before the prefill."""
        self.status = head.status

    def on_end(self) -> None:
        """All of it came."""
        if not self.done.done():
            self.done.set_result(None)

    def on_failure(self, error: UpstreamError) -> None:
        """It will never."""
        if not self.done.done():
            self.done.set_exception(error)


class _Collected(Awaited):
    """Keeps the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self._size_bytes = 0

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Head and body at once."""
        self.status = head.status
        self.pieces.append(body)
        self.on_end()

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """More of the body."""
        self.pieces += payload
        self._size_bytes += len(framed)
        if self._size_bytes > _ANSWER_LIMIT_BYTES:
            self.on_failure(UpstreamError("protocol", sent=True))


async def ask(pool: ReplicaPool, path: str, body: bytes, deadline_s: float) -> tuple[int, bytes]:
    """POSTs a JSON body; status and body of the answer. Raises UpstreamError, TimeoutError."""
    async with asyncio.timeout(deadline_s):
        connection = pool.idle() or await pool.connect()
        sink = _Collected()
        head = request_head(
            "POST",
            path.encode(),
            pool.lines,
            b"content-type: application/json\r\n",
            b"tokenlane",
            len(body),
        )
        try:
            connection.send("POST", [head, body], sink)
            await sink.done
        finally:
            connection.abort(sink)  # does nothing where the answer has ended
    return sink.status, b"".join(sink.pieces)
