"""Long bodies to replicas that read slowly, or not at all.

The whole body lay in the transport's buffer, and asyncio's calls to stop writing met a protocol
that had no such method: a traceback in the log for each.
"""

import asyncio
import logging
import time

import pytest

from tests.http.sinks import REQUEST, Sink, asking, pool_of
from tests.raw import Peer, Upstream, ok, until
from tokenlane.http.upstream import UpstreamConnection

# More than the kernel's buffers of both ends hold.
BODY = b"0123456789abcdef" * (2 << 20)
HEAD = b"POST /x HTTP/1.1\r\nhost: r\r\ncontent-length: %d\r\n\r\n" % len(BODY)


def unsent_bytes(connection: UpstreamConnection) -> int:
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


@pytest.mark.slow
async def test_a_slow_replica_gets_it_as_it_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    reads = asyncio.Event()

    async def script(peer: Peer) -> None:
        await reads.wait()
        await peer.through(b"\r\n\r\n")
        got, peer.unread = bytearray(peer.unread), b""
        while len(got) < len(BODY):
            got += await peer.more()
        assert got == BODY
        await peer.send(ok(b"got it"))
        await peer.asked()
        await peer.send(ok(b"and this"))

    with caplog.at_level(logging.WARNING):
        async with Upstream(script) as upstream:
            pool = pool_of(upstream, first_byte_deadline_s=5.0, between_chunks_deadline_s=60.0)
            connection = await pool.connect()
            sink = Sink()
            connection.send("POST", [HEAD, BODY], sink)
            await until(lambda: connection._choked)
            # What is left of the pieces that were written at once.
            assert unsent_bytes(connection) < 2 * 1024 * 1024
            # Its time to answer has not begun.
            assert connection._deadline.due_s > time.monotonic() + 30
            reads.set()
            await until(lambda: not connection._choked and connection._unsent is None)
            assert connection._deadline.due_s < time.monotonic() + 30
            async with asyncio.timeout(20):
                await sink.ended.wait()
            assert (sink.error, sink.payload) == (None, b"got it")
            assert pool.idle() is connection
            assert (await asking(connection)).payload == b"and this"
            connection.close()
    assert caplog.records == []


async def test_one_that_takes_nothing_has_a_deadline() -> None:
    async def script(peer: Peer) -> None:
        await asyncio.Event().wait()

    async with Upstream(script) as upstream:
        pool = pool_of(upstream, first_byte_deadline_s=60.0, between_chunks_deadline_s=0.05)
        connection = await pool.connect()
        sink = Sink()
        connection.send("POST", [HEAD, BODY], sink)
        async with asyncio.timeout(20):
            await sink.ended.wait()
        assert sink.what == ["first_byte_timeout"]
        await until(lambda: pool.open_count == 0)


@pytest.mark.parametrize("answer", [ok(b"no"), ok(b"no")[:-1]], ids=["whole", "in-parts"])
async def test_who_answers_without_reading_it_gets_no_further_request(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.through(b"\r\n\r\n")
        await peer.send(answer)
        await asyncio.sleep(0)
        await peer.send(ok(b"no")[len(answer) :])
        await asyncio.Event().wait()

    async with Upstream(script) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        sink = Sink()
        connection.send("POST", [HEAD, BODY], sink)
        async with asyncio.timeout(20):
            await sink.ended.wait()
        assert (sink.error, sink.payload) == (None, b"no")
        assert pool.idle() is None
        await until(lambda: pool.open_count == 0)


async def test_a_small_body_is_one_write() -> None:
    async def script(peer: Peer) -> None:
        assert await peer.more() == REQUEST + b"small"
        await peer.send(ok())

    async with Upstream(script) as upstream:
        connection = await pool_of(upstream).connect()
        sink = Sink()
        connection.send("POST", [REQUEST, b"small"], sink)
        async with asyncio.timeout(20):
            await sink.ended.wait()
        connection.close()
