"""A replica behind TLS that closes right behind its answer: all of it is heard, though nobody read
when it came."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.config.test_tls import folder as tls_folder
from tests.http.sinks import REQUEST, Sink
from tokenlane.config.settings import UpstreamSettings
from tokenlane.http.heads import ResponseHead
from tokenlane.http.pool import ReplicaPool

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
