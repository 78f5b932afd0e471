"""The connections to one replica: those in use, and the idle ones.

Invariants:
- An idle connection is closed before the replica would close it, and checked for a pending close
  before it is used: a request sent into a closing connection may or may not have run, so it could
  not be sent again.
"""

import asyncio
import errno
import ssl
from collections import deque
from typing import Final, cast
from urllib.parse import urlsplit

from tokenlane.config.secret import Secret
from tokenlane.config.settings import UpstreamSettings
from tokenlane.config.tls import system_context
from tokenlane.errors import RequestError, UpstreamError, server_error
from tokenlane.http.upstream import ConnectionPool, UpstreamConnection
from tokenlane.runtime.clock import monotonic

# What this host lacks: descriptors, ports, memory. It says nothing of a replica.
_LACKS: Final = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)


class ReplicaPool(ConnectionPool):
    """The connections to one replica.

    key: sent with each request. tls: for an https:// replica. lines: the header lines that every
    request to the replica has.
    """

    def __init__(
        self,
        url: str,
        settings: UpstreamSettings,
        key: Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(settings)
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = (tls or system_context()) if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self.lines = b"host: %b\r\n" % parts.netloc.rpartition("@")[2].encode("ascii")
        if key is not None:
            self.lines += b"authorization: Bearer %b\r\n" % key.reveal()
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<ReplicaPool {self._host}:{self._port} open={len(self._open)} idle={len(self._idle)}>"
        )

    @property
    def open_count(self) -> int:
        """How many connections there are, idle ones included."""
        return len(self._open)

    @property
    def idle_count(self) -> int:
        """How many connections are idle."""
        return len(self._idle)

    def idle(self) -> UpstreamConnection | None:
        """Return the most recently used idle connection that can carry a request, if any."""
        now_s = monotonic()
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable(now_s):
                return connection
            connection.close()
        return None

    async def connect(self) -> UpstreamConnection:
        """Return a new connection. Raise UpstreamError (`refused`, `unreachable`, `protocol`,
        `connect_timeout`, nothing sent), or RequestError 503 where the lack is our own."""
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self)
        protocol = cast(asyncio.Protocol, connection)
        try:
            async with asyncio.timeout(self.settings.connect_deadline_s):
                await loop.create_connection(
                    lambda: protocol, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamError("connect_timeout", sent=False) from None
        except ssl.SSLError:  # one of the two does not trust the other's certificate
            raise UpstreamError("protocol", sent=False) from None
        except OSError as error:
            if error.errno in _LACKS:
                raise out_of_descriptors() from None
            # Only a refusal says that nobody listens there: a name or a route may come back.
            refused = error.errno == errno.ECONNREFUSED
            raise UpstreamError("refused" if refused else "unreachable", sent=False) from None
        self._open.add(connection)
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """As ConnectionPool."""
        if self._closed:
            connection.close()
            return
        self._idle.append(connection)
        if len(self._idle) > self.settings.idle_limit_count:
            self._idle.popleft().close()

    def forget(self, connection: UpstreamConnection) -> None:
        """As ConnectionPool."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now_s: float) -> None:
        """Close the connections that idled too long; called now and then."""
        while self._idle and not self._idle[0].usable(now_s):
            self._idle.popleft().close()

    def close(self) -> None:
        """Close idle connections now, and those in use once their requests end."""
        self._closed = True
        while self._idle:
            self._idle.popleft().close()


def out_of_descriptors() -> RequestError:
    """Return the 503 for a request that no connection can be opened for, which is no replica's
    fault."""
    text = "The gateway can open no more connections: it lacks descriptors, ports or memory."
    return server_error(503, text, "out_of_descriptors", retry_after_s=1)
