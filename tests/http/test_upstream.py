"""Connections to a replica, heard by a sink that writes down everything."""

import asyncio
import errno
import time

import pytest

from tests.http.sinks import REQUEST, Sink, asking, pool_of, saying
from tests.raw import Peer, Upstream, answering, chunk, ok, until
from tokenlane.config.settings import UpstreamSettings
from tokenlane.http.pool import ReplicaPool
from tokenlane.http.upstream import UpstreamConnection

GOOD = {
    "fixed": (ok(b"abc"), b"abc"),
    "empty": (ok(b""), b""),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "chunked": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        + chunk(b"ab") + b"1;x=y\r\nc\r\n0\r\nA: b\r\n\r\n",
        b"abc",
    ),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 8 + ok(b"abc"), b"abc"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "payload"), GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("piece_bytes", [0, 1], ids=["whole", "bytes"])
async def test_good_answers(answer: bytes, payload: bytes, piece_bytes: int) -> None:
    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.asked()
            await peer.send(answer, piece_bytes)

    async with Upstream(script) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        for _ in range(2):
            sink = await asking(connection)
            assert sink.error is None
            assert sink.payload == payload
            assert pool.idle() is connection
        connection.close()


async def test_an_answer_that_its_connection_ends() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with Upstream(saying(head, b"abc", b"def")) as upstream:
        pool = pool_of(upstream)
        sink = await asking(await pool.connect())
        assert (sink.what, sink.payload) == (["head", "body", "end"], b"abcdef")
        assert pool.idle() is None
    async with Upstream(saying(head, b"abc", then="reset")) as upstream:
        assert (await asking(await pool_of(upstream).connect())).what[-1] == "truncated"


FIXED = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

BAD: dict[str, tuple[list[bytes], str, list[str]]] = {
    "closed": ([], "close", ["closed"]),
    "reset": ([], "reset", ["reset"]),
    "half-a-head": ([b"HTTP/1.1 200"], "close", ["closed"]),
    "garbage": ([b"\x00\x16not HTTP\r\n\r\n"], "wait", ["protocol"]),
    "other-protocol": ([b"SSH-2.0-x\r\n\r\n"], "wait", ["protocol"]),
    "cut-fixed": ([FIXED, b"abc"], "close", ["head", "body", "truncated"]),
    "cut-fixed-reset": ([FIXED, b"abc"], "reset", ["head", "body", "truncated"]),
    "cut-chunk": ([CHUNKED, b"5\r\nabc"], "close", ["head", "body", "truncated"]),
    "no-last-chunk": ([CHUNKED, chunk(b"abc")], "close", ["head", "body", "truncated"]),
    "bad-chunk": ([CHUNKED, chunk(b"abc"), b"xyz\r\n"], "wait", ["head", "body", "protocol"]),
    "interim-storm": ([b"HTTP/1.1 100 Continue\r\n\r\n" * 9], "wait", ["protocol"]),
    "switching": ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], "wait", ["protocol"]),
    "huge-head": ([b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 12_000], "wait", ["protocol"]),
    "endless-line": ([b"HTTP/1.1 200 " + b"a" * 70_000], "wait", ["protocol"]),
    "two-lengths": (
        [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"],
        "wait",
        ["protocol"],
    ),
}


@pytest.mark.parametrize(("parts", "then", "what"), BAD.values(), ids=BAD)
async def test_bad_answers(parts: list[bytes], then: str, what: list[str]) -> None:
    async with Upstream(saying(*parts, then=then)) as upstream:
        pool = pool_of(upstream)
        sink = await asking(await pool.connect())
        assert sink.what == what
        assert sink.error is not None
        assert sink.error.sent
        assert pool.idle() is None
        await until(lambda: pool.open_count == 0)


async def test_bytes_behind_an_answer_cost_the_connection() -> None:
    async with Upstream(saying(ok(b"abc") + b"more", then="wait")) as upstream:
        pool = pool_of(upstream)
        sink = await asking(await pool.connect())
        assert (sink.what, sink.payload) == (["head", "body", "end"], b"abc")
        assert pool.idle() is None
    async with Upstream(saying(ok(b"abc"), b"more", then="wait")) as upstream:
        pool = pool_of(upstream)
        await asking(await pool.connect())
        await until(lambda: pool.open_count == 0)


@pytest.mark.parametrize("headers", ["connection: close\r\n", "Connection: x, Close\r\n"])
async def test_a_replica_that_says_close_is_believed(headers: str) -> None:
    async with Upstream(answering(ok(b"abc", headers))) as upstream:
        pool = pool_of(upstream)
        await asking(await pool.connect())
        assert pool.idle() is None


async def test_abort_closes_at_once_and_nothing_is_heard() -> None:
    async with Upstream(saying(CHUNKED, chunk(b"abc"), then="wait")) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        sink = Sink()
        connection.send("POST", [REQUEST], sink)
        await sink.begun.wait()
        heard = list(sink.what)
        connection.abort(sink)
        await until(lambda: pool.open_count == 0)
        assert sink.what == heard
        await asyncio.wait_for(asyncio.gather(*upstream.scripts), 5)


async def test_a_late_abort_does_not_hit_the_next_request() -> None:
    """A client that leaves while its answer ends must not end another one's request."""
    async with Upstream(answering(ok(b"1"), ok(b"2"))) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        first = await asking(connection)
        assert pool.idle() is connection
        second = Sink()
        connection.send("POST", [REQUEST], second)
        connection.abort(first)
        async with asyncio.timeout(5):
            await second.ended.wait()
        assert second.payload == b"2"
        pool.close()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "first_byte_timeout"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], "first_byte_timeout"),
        # vLLM sends the head of a stream before its prefill.
        ([CHUNKED], "first_byte_timeout"),
        ([CHUNKED, chunk(b"abc")], "chunk_timeout"),
        ([FIXED, b"abc"], "chunk_timeout"),
    ],
)
async def test_a_silent_replica(parts: list[bytes], reason: str) -> None:
    async with Upstream(saying(*parts, then="wait")) as upstream:
        pool = pool_of(upstream, first_byte_deadline_s=0.06, between_chunks_deadline_s=0.05)
        sink = await asking(await pool.connect())
        assert sink.what[-1] == reason


async def test_other_deadlines_hold_on_connections_that_are_open() -> None:
    async with Upstream(saying(CHUNKED, chunk(b"abc"), then="wait")) as upstream:
        pool = pool_of(upstream, between_chunks_deadline_s=60.0)
        connection = await pool.connect()
        pool.settings = UpstreamSettings(between_chunks_deadline_s=0.03)
        assert (await asking(connection)).what[-1] == "chunk_timeout"


async def test_a_paused_replica_is_not_a_silent_one() -> None:
    async with Upstream(saying(CHUNKED, chunk(b"abc"), then="wait")) as upstream:
        pool = pool_of(upstream, between_chunks_deadline_s=0.03)
        connection = await pool.connect()
        sink = Sink()
        connection.send("POST", [REQUEST], sink)
        await until(lambda: sink.payload)
        connection.pause(True)
        await asyncio.sleep(0.06)
        assert sink.error is None
        connection.pause(False)
        await sink.ended.wait()
        assert sink.what[-1] == "chunk_timeout"


async def test_a_client_that_the_first_bytes_pause_leaves_the_deadline_between_bytes() -> None:
    class Slow(Sink):
        def on_body(self, framed: bytes, payload: list[bytes]) -> None:
            super().on_body(framed, payload)
            connection.pause(True)

    async with Upstream(saying(CHUNKED, chunk(b"abc"), then="wait")) as upstream:
        pool = pool_of(upstream, first_byte_deadline_s=60.0, between_chunks_deadline_s=0.03)
        connection = await pool.connect()
        slow = Slow()
        connection.send("POST", [REQUEST], slow)
        await until(lambda: slow.payload)
        connection.pause(False)
        async with asyncio.timeout(10):
            await slow.ended.wait()
        assert slow.what[-1] == "chunk_timeout"


async def test_a_client_that_reads_again_before_the_first_byte_leaves_its_deadline() -> None:
    async with Upstream(saying(CHUNKED, then="wait")) as upstream:
        pool = pool_of(upstream, first_byte_deadline_s=60.0, between_chunks_deadline_s=0.03)
        connection = await pool.connect()
        sink = Sink()
        connection.send("POST", [REQUEST], sink)
        connection.pause(True)
        connection.pause(False)
        await asyncio.sleep(0.09)
        assert sink.error is None
        connection.abort(sink)


class ClosedAgain(asyncio.Transport):
    """As uvloop tells of a connection whose descriptor is not there any more."""

    aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        raise OSError(errno.EBADF, "Bad file descriptor")

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


async def test_a_connection_that_is_closed_again_as_it_is_made_carries_nothing() -> None:
    pool = ReplicaPool("http://127.0.0.1:9", UpstreamSettings())
    connection, transport = UpstreamConnection(pool), ClosedAgain()
    connection.connection_made(transport)
    assert transport.aborted
    assert not connection.usable(time.monotonic())
    connection.connection_lost(None)


async def test_a_pause_does_not_outlive_its_answer() -> None:
    """The end of an answer can come with the bytes that made its client too slow."""

    class Slow(Sink):
        def on_body(self, framed: bytes, payload: list[bytes]) -> None:
            super().on_body(framed, payload)
            connection.pause(True)

    async with Upstream(answering(CHUNKED + chunk(b"1") + chunk(b""), ok(b"2"))) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        slow = Slow()
        connection.send("POST", [REQUEST], slow)
        async with asyncio.timeout(5):
            await slow.ended.wait()
        assert pool.idle() is connection
        assert (await asking(connection)).payload == b"2"
        pool.close()
