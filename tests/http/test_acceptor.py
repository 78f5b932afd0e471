"""The door of a server whose loop is held while more clients come than it accepts."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import made_certificates
from tests.http.handlers import TEXT
from tests.raw import LIMIT_S, Wire, get, until
from tests.support import listener
from tokenlane.config.settings import ServerSettings
from tokenlane.http.server import Exchange, HttpServer

WORK_S = 0.005


SILENT_COUNT = 5


async def handler(exchange: Exchange) -> None:
    exchange.respond(200, TEXT, b"done")


class Door:
    """A server, how many it refused, and the clients that came."""

    def __init__(self, settings: ServerSettings) -> None:
        self.shed = 0
        self.wires: list[Wire] = []
        self.server = HttpServer(handler, settings, on_shed=self._shed)

    def _shed(self, count: int) -> None:
        self.shed += count

    def come(self, count: int) -> list[socket.socket]:
        """Connect, without a turn of the loop in between."""
        assert self.server.acceptor._listener is not None
        address = self.server.acceptor._listener.getsockname()
        return [socket.create_connection(address) for _ in range(count)]

    def come_silently(self) -> None:
        self.wires += map(Wire, self.come(SILENT_COUNT))

    async def crowded(self, request: bytes) -> None:
        """Come faster than they are accepted, until some are refused."""
        while not self.shed:
            for sock in self.come(20):
                sock.sendall(request)
                self.wires.append(Wire(sock))
            until_s = time.thread_time() + WORK_S
            while time.thread_time() < until_s:
                pass
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def door(
    tls: ssl.SSLContext | None = None, settings: ServerSettings | None = None
) -> AsyncIterator[Door]:
    made = Door(settings or ServerSettings())
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


async def test_a_handshake_has_the_deadline_of_a_head() -> None:
    """Of clients that came in one turn, only the first had it."""
    settings = ServerSettings(head_deadline_s=0.2)
    async with door(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings) as made:
        made.come_silently()
        await until(lambda: made.server.acceptor._taking)
        for wire in made.wires:
            assert await wire.rest() == b""


async def test_a_drain_waits_for_no_handshake(tmp_path: Path) -> None:
    """It closed nobody's connection, and served nobody in the queue, until each was over."""
    folder = made_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "node.pem", folder / "node.key")
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")
    trusting.check_hostname = False
    async with door(tls, ServerSettings(drain_linger_s=0.5)) as made:
        [sock] = made.come(1)
        idle, idle_writer = await asyncio.open_connection(
            sock=sock, ssl=trusting, server_hostname="node"
        )
        made.come_silently()
        [sock] = made.come(1)
        draining = asyncio.get_running_loop().create_task(made.server.drain(LIMIT_S))
        served, writer = await asyncio.open_connection(
            sock=sock, ssl=trusting, server_hostname="node"
        )
        writer.write(get("/"))
        assert (await served.read()).startswith(b"HTTP/1.1 200 ")
        assert await idle.read() == b""
        assert made.server.acceptor._taking
        assert not draining.done()
        for wire in made.wires:
            wire.close()
        assert await draining == 0
        for one in (idle_writer, writer):
            one.close()


def ended(made: Door) -> int:
    """How many connections ended, and without a byte."""
    count = 0
    for wire in made.wires:
        with contextlib.suppress(BlockingIOError):
            assert wire.sock.recv(100) == b""
            count += 1
    return count
