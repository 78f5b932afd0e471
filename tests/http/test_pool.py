"""The pool of connections to a replica, over real sockets: used again, aged, refused."""

import asyncio
import errno
import socket
import time

import pytest

from tests.http.sinks import asking, pool_of
from tests.raw import Peer, Upstream, answering, ok, until
from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import RequestError, UpstreamError
from tokenlane.http.pool import ReplicaPool


async def test_a_connection_is_used_again() -> None:
    async with Upstream(answering(ok(b"1"), ok(b"2"))) as upstream:
        pool = pool_of(upstream)
        assert pool.idle() is None
        connection = await pool.connect()
        sink = await asking(connection)
        assert (sink.what, sink.payload) == (["head", "body", "end"], b"1")
        assert repr(pool).endswith("open=1 idle=1>")
        assert pool.idle() is connection
        assert pool.idle() is None
        assert (await asking(connection)).payload == b"2"
        pool.close()
        await until(lambda: pool.open_count == 0)
        assert len(upstream.peers) == 1


async def test_no_delay_is_set() -> None:
    async with Upstream(answering(ok())) as upstream:
        connection = await pool_of(upstream).connect()
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()


async def test_an_idle_connection_ages() -> None:
    async with Upstream(answering(ok())) as upstream:
        pool = pool_of(upstream, idle_deadline_s=4.0)
        connection = await pool.connect()
        await asking(connection)
        now_s = time.monotonic()
        assert connection.usable(now_s)
        assert not connection.usable(now_s + 4.1)
        pool.sweep(now_s)
        assert pool.idle_count == 1
        pool.sweep(now_s + 4.1)
        assert pool.idle() is None
        await until(lambda: pool.open_count == 0)


async def test_a_pending_close_is_noticed_before_use() -> None:
    """A request sent into a closing connection may have run: it could not be sent again."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(ok())
        await peer.gone()

    async with Upstream(script) as upstream:
        pool = pool_of(upstream)
        connection = await pool.connect()
        await asking(connection)
        # As it looks to one who comes back to it a little later.
        connection._idle_since_s -= 1.0
        upstream.peers[0].sock.shutdown(socket.SHUT_WR)
        # The loop has not run since: only looking at the socket can tell.
        assert pool.idle() is None
        await until(lambda: pool.open_count == 0)


async def test_the_pool_keeps_no_more_than_its_limit() -> None:
    async with Upstream(answering(ok())) as upstream:
        pool = ReplicaPool(upstream.url, UpstreamSettings(idle_limit_count=2))
        connections = [await pool.connect() for _ in range(4)]
        for connection in connections:
            await asking(connection)
        assert pool.idle_count == 2
        await until(lambda: pool.open_count == 2)
        # The one used last is used next: the others may age and go.
        assert pool.idle() is connections[-1]
        pool.close()
        connections[-1].close()
        await until(lambda: pool.open_count == 0)


async def test_refused() -> None:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    with sock:
        pool = ReplicaPool(f"http://127.0.0.1:{sock.getsockname()[1]}", UpstreamSettings())
        with pytest.raises(UpstreamError) as failed:
            await pool.connect()
    assert (failed.value.reason, failed.value.sent) == ("refused", False)


async def test_connect_timeout() -> None:
    # A listener whose queue is full answers no handshake.
    with socket.socket() as sock, socket.socket() as filler:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        filler.connect(sock.getsockname())
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        pool = ReplicaPool(url, UpstreamSettings(connect_deadline_s=0.05))
        with pytest.raises(UpstreamError) as failed:
            await pool.connect()
    assert (failed.value.reason, failed.value.sent) == ("connect_timeout", False)


ROUTE = OSError(errno.EHOSTUNREACH, "No route to host")
NAME = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.parametrize("failure", [ROUTE, NAME, OSError("Multiple exceptions")], ids=str)
async def test_only_a_refusal_says_that_nobody_listens(
    failure: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UpstreamError) as failed:
        await _connect(failure, monkeypatch)
    assert (failed.value.reason, failed.value.sent) == ("unreachable", False)


@pytest.mark.row("O4")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM])
async def test_a_lack_of_ours(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError) as failed:
        await _connect(OSError(number, ""), monkeypatch)
    assert (failed.value.status, failed.value.code) == (503, "out_of_descriptors")


async def _connect(failure: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for a connection of an event loop that cannot make one."""

    async def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fails)
    await ReplicaPool("http://replica:8000", UpstreamSettings()).connect()
