"""A replica behind TLS that closes right behind its answer: all of it is heard, though nobody read
when it came."""

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from tests.config.test_tls import folder as tls_folder
from tests.http.sinks import REQUEST, Sink
from tests.scripted import ScriptedTransport
from tokenlane.config.settings import UpstreamSettings
from tokenlane.http.heads import ResponseHead
from tokenlane.http.pool import ReplicaPool
from tokenlane.http.upstream import UpstreamConnection

pki = tls_folder  # a certificate authority, and a certificate of its making

# More than a turn parses of a stream.
EVENT = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % (b"x" * 960)
PAYLOAD = EVENT * 240 + b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
ANSWERS = {
    "chunked": (
        HEAD + b"transfer-encoding: chunked\r\n\r\n",
        b"".join(b"%x\r\n%b\r\n" % (len(EVENT), EVENT) for _ in range(240))
        + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    ),
    "to the end": (HEAD + b"\r\n", PAYLOAD),
}
AWAY_S = 0.3


def serve(listener: socket.socket, context: ssl.SSLContext, head: bytes, body: bytes) -> None:
    """One answer, in a thread. The close follows the last byte."""
    connection, _ = listener.accept()
    with context.wrap_socket(connection, server_side=True) as peer:
        peer.recv(65536)
        peer.sendall(head)
        time.sleep(AWAY_S / 3)  # the body comes while nobody reads
        peer.sendall(body)
        peer.settimeout(5.0)
        with contextlib.suppress(OSError):
            peer.unwrap()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@contextlib.asynccontextmanager
async def lost() -> AsyncIterator[tuple[UpstreamConnection, Sink]]:
    """A connection that was lost in the turn in which very many chunks of a stream came."""
    transport, sink = ScriptedTransport(), Sink()
    connection = UpstreamConnection(ReplicaPool("http://127.0.0.1:9", UpstreamSettings()))
    connection.connection_made(cast(asyncio.Transport, transport))
    connection.send("POST", [REQUEST], sink)
    connection.data_received(ANSWERS["chunked"][0] + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
    connection.connection_lost(None)
    yield connection, sink
    await asyncio.sleep(0)
    assert connection._deadline._handle is None
    transport.sock.close()


@pytest.mark.row("O11")
@pytest.mark.parametrize("paused", [False, True])
async def test_what_waits_at_the_close_keeps_its_turns(paused: bool) -> None:
    """A turn parses 512 chunks: all in one took 0.1 s."""
    async with lost() as (connection, sink):
        parsed = [len(sink.payload)]
        connection.pause(paused)  # nothing comes any more that could be put off
        while not sink.ended.is_set():
            await asyncio.sleep(0)
            parsed.append(len(sink.payload))
    assert max(after - before for before, after in itertools.pairwise([0, *parsed])) <= 512
    assert (sink.payload, sink.what) == (b"x" * 5000, ["head", "body", "end"])


async def test_who_leaves_meanwhile_hears_no_more() -> None:
    async with lost() as (connection, sink):
        connection.abort(sink)
        for _ in range(5000 // 512 + 2):
            await asyncio.sleep(0)
    assert (len(sink.payload), sink.what) == (512, ["head", "body"])


@pytest.mark.parametrize("away", ["client", "loop"])
@pytest.mark.parametrize(("head", "body"), ANSWERS.values(), ids=ANSWERS)
async def test_nothing_is_lost_that_came_before_the_close(
    head: bytes, body: bytes, away: str, listener: socket.socket, pki: Path
) -> None:
    loop = asyncio.get_running_loop()

    class Away(Sink):
        def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
            super().on_head(head, length_bytes)
            if away == "loop":
                loop.call_soon(time.sleep, AWAY_S)
            else:  # one that reads slowly
                connection.pause(True)
                loop.call_later(AWAY_S, connection.pause, False)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "node.pem", pki / "node.key")
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    pool = ReplicaPool(
        url, UpstreamSettings(), tls=ssl.create_default_context(cafile=pki / "ca.pem")
    )
    with ThreadPoolExecutor(1) as thread:
        served = loop.run_in_executor(thread, serve, listener, context, head, body)
        connection = await pool.connect()
        sink = Away()
        connection.send("POST", [REQUEST], sink)
        async with asyncio.timeout(20):
            await sink.ended.wait()
            await served
    assert sink.error is None
    assert sink.payload == PAYLOAD
    pool.close()
