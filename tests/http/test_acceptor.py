"""The door of a server whose loop is held while more clients come than it accepts."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator

import pytest

from tests.http.handlers import TEXT
from tests.raw import LIMIT_S, Wire, get, until
from tests.support import listener
from tokenlane.config.settings import ServerSettings
from tokenlane.http.server import Exchange, HttpServer

WORK_S = 0.005


async def handler(exchange: Exchange) -> None:
    exchange.respond(200, TEXT, b"done")


class Door:
    """A server, how many it refused, and the clients that came."""

    def __init__(self) -> None:
        self.shed = 0
        self.wires: list[Wire] = []
        self.server = HttpServer(handler, ServerSettings(), on_shed=self._shed)

    def _shed(self, count: int) -> None:
        self.shed += count

    async def crowded(self, request: bytes) -> None:
        """Come faster than they are accepted, until some are refused."""
        assert self.server.acceptor._listener is not None
        address = self.server.acceptor._listener.getsockname()
        while not self.shed:
            for _ in range(20):
                sock = socket.create_connection(address)
                sock.sendall(request)
                self.wires.append(Wire(sock))
            until_s = time.thread_time() + WORK_S
            while time.thread_time() < until_s:
                pass
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def door(tls: ssl.SSLContext | None = None) -> AsyncIterator[Door]:
    made = Door()
    await made.server.listen(listener(), tls)
    yield made
    for wire in made.wires:
        wire.close()
    await made.server.drain(LIMIT_S)
    assert not made.server.connections


@pytest.mark.slow
async def test_it_begins_and_ends_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async with door() as made:
        await made.crowded(get("/", "connection: close\r\n"))
        codes = [(await wire.rest())[9:12] for wire in made.wires]
        assert codes.count(b"503") == made.shed > 0
        assert codes.count(b"200") == len(codes) - made.shed
        await until(lambda: len(caplog.messages) == 2)
        assert caplog.messages == [
            "more clients connect than can be served: some are refused",
            f"all clients are served again; {made.shed} were refused",
        ]


@pytest.mark.slow
async def test_without_a_handshake_there_is_no_answer() -> None:
    async with door(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)) as made:
        await made.crowded(b"")
        await until(lambda: ended(made) == made.shed)


def ended(made: Door) -> int:
    """How many connections ended, and without a byte."""
    count = 0
    for wire in made.wires:
        with contextlib.suppress(BlockingIOError):
            assert wire.sock.recv(100) == b""
            count += 1
    return count
