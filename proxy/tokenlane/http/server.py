"""An HTTP/1.1 server: a listening socket, its connections, and the handler they call.

Invariants:
- Every answer carries `x-request-id`, those to unreadable requests too.
- Whatever a handler raises, the client gets an answer in OpenAI's shape, never a traceback.
- A drain closes the listener first; who is in its queue by then is served. Requests in hand may
  finish. A connection without one is told to close by its next answer, or closed if none is asked
  for in a while: whoever sends a request at that moment must not find the door shut.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import cast

from tokenlane.config.settings import ServerSettings
from tokenlane.errors import INTERNAL, RequestError
from tokenlane.gateway import refusals
from tokenlane.http.body_queue import SingleFile
from tokenlane.http.connection import ServerConnection
from tokenlane.http.cors import Cors
from tokenlane.http.exchange import Exchange, Handler
from tokenlane.http.headers import FORWARDED_FIELDS, Field, lines
from tokenlane.http.heads import RequestHeads

__all__ = ["Exchange", "Handler", "HttpServer"]

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def _networks(settings: ServerSettings) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(network, strict=False) for network in settings.trusted_peers]


def _guarded(handler: Handler) -> Handler:
    """`handler`, with an answer to whatever it raises."""

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
    """Listens and counts.

    fields: added to every answer's head. add_request_id: put `x-request-id` there too.
    guarded: the handler answers whatever goes wrong in it by itself.
    on_refused: told of answers to requests that never reached the handler.
    dropped: names of header fields that replicas do not get.
    held_bytes: of requests' bodies now. short_of_memory: what brings a body is refused.
    """

    def __init__(
        self,
        handler: Handler,
        settings: ServerSettings,
        *,
        fields: Sequence[Field] = (),
        add_request_id: bool = True,
        guarded: bool = False,
        on_refused: Callable[[Exchange], None] | None = None,
        dropped: frozenset[bytes] = frozenset(),
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.connections: set[ServerConnection] = set()
        self.draining = False
        self.short_of_memory = False
        self.held_bytes = 0
        self.long_bodies = SingleFile()
        # Workers share the limit evenly, as those of admission.
        self._held_limit_bytes = -(-settings.bodies_limit_bytes // settings.workers)
        self.run = handler if guarded else _guarded(handler)
        self.lines = lines(fields)
        self.cors = Cors(settings.cors_origins) if settings.cors_origins else None
        if self.cors is not None:
            # A replica that knows of the origin would answer it too.
            dropped |= {b"origin"}
        self.heads = RequestHeads(settings.header_limit_count, settings.target_limit_bytes, dropped)
        self._trusted = _networks(settings)
        # What a stranger says of who is behind it goes no further.
        self._heads_of_strangers = RequestHeads(
            settings.header_limit_count, settings.target_limit_bytes, dropped | FORWARDED_FIELDS
        )
        self.add_request_id = add_request_id
        self._on_refused = on_refused
        self._server: asyncio.Server | None = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._empty = asyncio.Event()
        self._made_ids = itertools.count()
        self._id_prefix = os.urandom(10).hex().encode()

    def configure(self, settings: ServerSettings, dropped: frozenset[bytes]) -> None:
        """From the next requests on, those of open connections too; what a connection began with
        (its first deadline, whether its peer is trusted) stays."""
        limits = settings.header_limit_count, settings.target_limit_bytes
        self.settings = settings
        self._trusted = _networks(settings)
        self.heads.configure(*limits, dropped)
        self._heads_of_strangers.configure(*limits, dropped | FORWARDED_FIELDS)

    def heads_of(self, peer: object) -> RequestHeads:
        """What reads the heads of a connection. peer: its address, as a socket says it."""
        if self._trusted and isinstance(peer, tuple):
            address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
            address = getattr(address, "ipv4_mapped", None) or address
            if any(address in network for network in self._trusted):
                return self.heads
        return self._heads_of_strangers

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves a bound socket. tls: speaks TLS with it."""
        self._listener, self._tls = sock, tls
        self._server = await self.loop.create_server(
            self._protocol,
            sock=sock,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=self.settings.head_deadline_s if tls is not None else None,
        )

    def _protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, ServerConnection(self))

    async def _stop_listening(self) -> None:
        """Closes the listener, but serves those whom the kernel has connected already: closed
        with the listener, they would lose what they have sent."""
        server, listener = self._server, self._listener
        if server is None or listener is None:
            return
        self._server = None
        queue = listener.dup()
        server.close()
        taken = []
        with contextlib.suppress(OSError):  # nobody is left, or there is no descriptor for them
            while True:
                taken.append(queue.accept()[0])
        queue.close()
        try:
            while taken:
                with contextlib.suppress(OSError):  # has left again
                    await self.loop.connect_accepted_socket(
                        self._protocol, taken.pop(0), ssl=self._tls
                    )
        finally:
            for sock in taken:
                sock.close()

    def takes(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Whether so much more of a body may be held. own_bytes: of the same, held already; a body
        larger than everything that may be held is let in alone."""
        if self.short_of_memory:
            return own_bytes > 0
        limit_bytes = self._held_limit_bytes
        return (
            not limit_bytes
            or self.held_bytes <= own_bytes
            or self.held_bytes + size_bytes <= limit_bytes
        )

    def no_memory(self) -> RequestError:
        """The answer to a request whose body may not be held."""
        return refusals.no_memory()

    @property
    def idle_s(self) -> float:
        """How long a connection may have no request."""
        settings = self.settings
        return settings.drain_linger_s if self.draining else settings.idle_deadline_s

    def refused(self, exchange: Exchange) -> None:
        """A request that was refused before there was a handler."""
        if self._on_refused is not None:
            self._on_refused(exchange)

    def request_id(self, offered: bytes | None) -> bytes:
        """The client's id where it is short and printable, else a new one."""
        if offered is not None and _REQUEST_ID.fullmatch(offered):
            return offered
        return b"%b%012x" % (self._id_prefix, next(self._made_ids))

    def opened(self, connection: ServerConnection) -> None:
        """A client connected."""
        self.connections.add(connection)

    def closed(self, connection: ServerConnection) -> None:
        """A client is gone."""
        self.connections.discard(connection)
        self._check_empty()

    def _check_empty(self) -> None:
        if self.draining and not self.connections:
            self._empty.set()

    async def drain(self, deadline_s: float) -> int:
        """Stops listening, lets requests finish; returns how many had to be cut."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._stop_listening()
                for connection in list(self.connections):
                    connection.linger()
                self._check_empty()
                await self._empty.wait()
        cut = len(self.connections)
        for connection in list(self.connections):
            connection.kill()
        return cut
