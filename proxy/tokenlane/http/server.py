"""An HTTP/1.1 server: a listening socket, its connections, and the handler they call.

Invariants:
- Every answer carries `x-request-id`, those to unreadable requests too.
- Whatever a handler raises, the client gets an answer in its error format, never a traceback.
- Half of the process's file descriptors are for replicas: at so many clients none is accepted,
  those without a request are asked to leave, and further ones wait in the kernel's queue.
- A drain closes the listener first; clients that the kernel has connected by then are served.
  Requests in flight may finish. A connection without one is told to close by its next answer, or
  closed if there is no next request in a while: a client that sends one at that moment must not
  find the connection closed.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, cast

from tokenlane.config.settings import ServerSettings
from tokenlane.errors import INTERNAL, RequestError
from tokenlane.http.acceptor import Acceptor
from tokenlane.http.body_pieces import KnownPart
from tokenlane.http.connection import ServerConnection
from tokenlane.http.error_format import ErrorFormatOf, openai_errors
from tokenlane.http.exchange import Exchange, Handler
from tokenlane.http.headers import FORWARDED_FIELDS
from tokenlane.http.heads import MEMO_LIMIT_BYTES, RequestHeads, responses_size_bytes
from tokenlane.http.local_reply import LocalReply
from tokenlane.http.server_state import ServerState

__all__ = ["Exchange", "Handler", "HttpServer"]

# Clients are accepted again below this share of those that there may be.
_ROOM_RATIO: Final = 7 / 8
# Descriptors for files, names and whatever else is neither a client's nor for its replica.
_SPARE_COUNT: Final = 16
_LAST_WORDS_S: Final = 0.5

log = logging.getLogger(__name__)


def _guarded(handler: Handler) -> Handler:
    """Wrap `handler` so that whatever it raises is answered."""

    async def run(exchange: Exchange) -> None:
        try:
            await handler(exchange)
        except RequestError as error:
            exchange.fail(error)
        except Exception:
            log.exception("a request handler failed")
            exchange.fail(INTERNAL)

    return run


class HttpServer:
    """Listens on a socket and calls the handler for each request.

    add_request_id: every answer carries `x-request-id`.
    guarded: the handler answers whatever goes wrong in it by itself.
    on_refused: called with the answers to requests that never reached the handler.
    on_shed: called with how many clients were refused because too many came. spared: paths on which
    none is.
    dropped: names of header fields that replicas do not get.
    error_format: returns how errors are written to the clients of a path.
    known_part: returns parts of bodies that others may begin with.
    state: what the connections share. connections: the open ones. acceptor: where they come from.
    """

    def __init__(
        self,
        handler: Handler,
        settings: ServerSettings,
        *,
        add_request_id: bool = True,
        guarded: bool = False,
        on_refused: Callable[[Exchange], None] | None = None,
        on_shed: Callable[[int], object] = lambda _: None,
        spared: frozenset[str] = frozenset(),
        dropped: frozenset[bytes] = frozenset(),
        error_format: ErrorFormatOf = openai_errors,
        known_part: KnownPart | None = None,
    ) -> None:
        self.state = ServerState(settings, known_part, add_request_id=add_request_id)
        self.connections: set[ServerConnection] = set()
        self.run = handler if guarded else _guarded(handler)
        self._heads = RequestHeads(settings, error_format=error_format)
        self._untrusted_heads = RequestHeads(settings, error_format=error_format)
        self.configure(settings, dropped)
        self._on_refused = on_refused
        self.acceptor = Acceptor(
            self.state,
            self._connection,
            lambda: self._limit_count - len(self.connections),
            LocalReply(self.state, self._untrusted_heads, spared),
            on_shed,
        )
        self._limit_count = 0
        self._stopping = False
        self._left = asyncio.Event()

    def configure(self, settings: ServerSettings, dropped: frozenset[bytes]) -> None:
        """Replace the settings for new requests, on open connections too. What a connection started
        with (its first deadline, whether its peer is trusted) stays."""
        if self.state.cors is not None:
            # A replica that knows of the origin would answer it too.
            dropped |= {b"origin"}
        self.state.settings = settings
        self._trusted = [ip_network(name, strict=False) for name in settings.trusted_peers]
        self._heads.configure(settings, dropped)
        # Forwarded headers of untrusted peers are dropped.
        self._untrusted_heads.configure(settings, dropped | FORWARDED_FIELDS)

    @property
    def heads_size_bytes(self) -> int:
        """Memory of the heads that are remembered, answers' too."""
        return self._heads.size_bytes + self._untrusted_heads.size_bytes + responses_size_bytes()

    @property
    def heads_limit_bytes(self) -> int:
        """The limit of that memory."""
        return 3 * MEMO_LIMIT_BYTES

    def heads_for(self, peer: object) -> RequestHeads:
        """As ConnectionOwner."""
        if self._trusted and isinstance(peer, tuple):
            address = ip_address(str(peer[0]).partition("%")[0])
            address = getattr(address, "ipv4_mapped", None) or address
            if any(address in network for network in self._trusted):
                return self._heads
        return self._untrusted_heads

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a bound socket. tls: what its clients have to speak, if any."""
        self._limit_count = _connection_limit()
        await self.acceptor.listen(sock, tls)

    def _connection(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, ServerConnection(self))

    def refused(self, exchange: Exchange) -> None:
        """As ConnectionOwner."""
        if self._on_refused is not None:
            self._on_refused(exchange)

    def opened(self, connection: ServerConnection) -> None:
        """As ConnectionOwner."""
        self.connections.add(connection)
        if len(self.connections) >= self._limit_count and self.acceptor.open:
            self.acceptor.pause()
            self._begin_drain()

    def closed(self, connection: ServerConnection) -> None:
        """As ConnectionOwner."""
        self.connections.discard(connection)
        if self._stopping:
            self._left.set()
        elif self.state.draining and len(self.connections) < self._limit_count * _ROOM_RATIO:
            self.state.draining = False
            self.acceptor.resume()

    def _begin_drain(self) -> None:
        self.state.draining = True
        for connection in list(self.connections):
            connection.begin_drain()

    async def _emptied(self) -> None:
        while self.connections:
            self._left.clear()
            await self._left.wait()

    async def drain(self, deadline_s: float, *, handshake_s: float = 0.0) -> int:
        """Stop listening and let requests finish. Return how many of them had to be cut.
        handshake_s: as `Acceptor.close`."""
        self.state.draining = self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                # First those that are connected: a handshake may take until its deadline.
                self._begin_drain()
                await self.acceptor.close(handshake_s)
                await self._emptied()
        cut = sum([connection.cut() for connection in list(self.connections)])
        # Error events of broken streams get a moment to be sent.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._emptied()
        for connection in list(self.connections):
            connection.abort()
        return cut


def _connection_limit() -> int:
    """Return how many clients there may be: each needs a descriptor for its replica, too."""
    limit_count, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit_count == resource.RLIM_INFINITY:
        return 1 << 40
    used_count = len(list(Path("/proc/self/fd").iterdir()))
    return max((limit_count - used_count - _SPARE_COUNT) // 2, 1)
