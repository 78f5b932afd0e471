"""The answer to a client that is refused at accept: written with plain system calls, at a small
part of what a request costs.

Invariants:
- It is what the request would have got later: in its dialect, with its id, `connection: close`.
- Nothing waits: what a client has not sent by now is not read.
- A connection whose request was not read whole stays open for a moment, without being read: closed
  at once it would be reset, which could destroy the answer on its way.
"""

import contextlib
import socket
from collections import deque
from typing import Final

from tokenlane.errors import RequestError
from tokenlane.http.exchange import Downstream, Exchange
from tokenlane.http.heads import RequestHeads
from tokenlane.http.request_body import RequestBody
from tokenlane.http.server_state import ServerState

# Numbers, because combining the flags of `socket` costs as much as the call.
_PEEK: Final = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
# MSG_TRUNC: the kernel drops received bytes without copying them.
_DROP: Final = int(socket.MSG_TRUNC | socket.MSG_DONTWAIT)
# The answer and the end of the connection leave in one packet.
_LAST: Final = int(socket.MSG_MORE | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_HEAD_BYTES: Final = 4096
_REST_BYTES: Final = 64 * 1024
_LINGER_LIMIT_COUNT: Final = 256
_LINGER_S: Final = 2.0


class LocalReply(Downstream):
    """Answers clients with an error. spared: paths that are served nevertheless."""

    def __init__(self, state: ServerState, heads: RequestHeads, spared: frozenset[str]) -> None:
        self._state = state
        self._heads = heads
        self._spared = spared
        self._dropped = bytearray(_REST_BYTES)
        self._sock: socket.socket | None = None
        self._lingering: deque[tuple[float, socket.socket]] = deque()
        self.body = RequestBody(state.body_memory)

    def refuse(self, sock: socket.socket, error: RequestError, now_s: float) -> bool:
        """Answer and close. Return False, with nothing read, for a client that must be served: it
        asks for a spared path, or has not sent a request yet."""
        try:
            begun = sock.recv(_HEAD_BYTES, _PEEK)
        except BlockingIOError:
            return False
        except OSError:
            sock.close()
            return True
        end = begun.find(b"\r\n\r\n") + 4
        head, length_bytes = self._heads.unreadable, 0
        if end >= 4:
            with contextlib.suppress(RequestError):
                head, length_bytes = self._heads.parse(begun[:end])
        if head.path in self._spared and head is not self._heads.unreadable:
            return False
        exchange = Exchange(self, self._state, head)
        exchange.keep_alive = False
        self._sock = sock
        try:
            read_bytes = sock.recv_into(self._dropped, 0, _DROP)
            exchange.fail(error)
            if end < 4 or head.chunked or read_bytes < end + length_bytes:
                sock.shutdown(socket.SHUT_WR)
                self._linger(sock, now_s)
            else:
                sock.close()
        except OSError:  # disconnected
            sock.close()
        return True

    def _linger(self, sock: socket.socket, now_s: float) -> None:
        self._lingering.append((now_s + _LINGER_S, sock))
        if len(self._lingering) > _LINGER_LIMIT_COUNT:
            self._lingering.popleft()[1].close()

    def tidy(self, now_s: float) -> bool:
        """Close connections that have lingered long enough. Return whether any are left."""
        while self._lingering and self._lingering[0][0] <= now_s:
            self._lingering.popleft()[1].close()
        return bool(self._lingering)

    def write(self, data: bytes) -> None:
        """As Downstream. It fits into the buffer of a new connection."""
        assert self._sock is not None
        self._sock.send(data, _LAST)
