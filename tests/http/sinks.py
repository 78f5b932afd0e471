"""Connections to scripted replicas, and who hears their answers."""

import asyncio

from tests.raw import Peer, Script, Upstream
from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import UpstreamError
from tokenlane.http.heads import ResponseHead
from tokenlane.http.pool import ReplicaPool
from tokenlane.http.upstream import UpstreamConnection

REQUEST = b"POST /x HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n"


class Sink:
    """Hears an answer. what: the callbacks' names in order, body calls only once."""

    def __init__(self) -> None:
        self.what: list[str] = []
        self.head: ResponseHead | None = None
        self.framed = b""
        self.payload = b""
        self.error: UpstreamError | None = None
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        self.on_head(head, len(body))
        if body:
            self.on_body(body, [body])
        self.on_end()

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        self.what.append("head")
        self.head = head
        self.begun.set()

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        if self.what[-1] != "body":
            self.what.append("body")
        self.framed += framed
        self.payload += b"".join(payload)

    def on_end(self) -> None:
        self.what.append("end")
        self.ended.set()

    def on_failure(self, error: UpstreamError) -> None:
        self.what.append(error.reason)
        self.error = error
        self.ended.set()


async def asking(connection: UpstreamConnection, method: str = "POST") -> Sink:
    sink = Sink()
    connection.send(method, [REQUEST], sink)
    async with asyncio.timeout(10):
        await sink.ended.wait()
    return sink


def saying(*parts: bytes, then: str = "close") -> Script:
    """Reads a request, sends the parts one by one, then closes, resets or waits."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        for part in parts:
            await peer.send(part)
            await asyncio.sleep(0.002)
        if then == "close":
            peer.close()
        elif then == "reset":
            peer.reset()
        else:
            await peer.gone()

    return script


def pool_of(upstream: Upstream, **settings: float) -> ReplicaPool:
    return ReplicaPool(upstream.url, UpstreamSettings(**settings))  # type: ignore[arg-type]
