"""A server's drain: what is in hand ends well, and nobody finds the door shut."""

import asyncio
import socket
import time

import pytest

from tests.http.handlers import TEXT
from tests.raw import Client, get, until
from tests.support import serving
from tokenlane.config.settings import ServerSettings
from tokenlane.http.server import Exchange, HttpServer
from tokenlane.runtime.ports import reuse_port_socket


async def test_a_drain_lets_requests_finish() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        await go_on.wait()
        exchange.respond(200, TEXT, b"done")

    async with serving(handler, ServerSettings(drain_linger_s=0.0)) as served:
        idle, busy = await served.client(), await served.client()
        await busy.send(get("/") + get("/pipelined"))
        await entered.wait()
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        assert await idle.rest() == b""
        with pytest.raises(ConnectionError):
            await Client.connect(served.port)
        go_on.set()
        answer = await busy.answer("GET")
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert await busy.rest() == b""
        busy.close()
        assert await draining == 0


@pytest.mark.row("O7")
async def test_an_idle_connection_may_be_used_once_more_in_a_drain() -> None:
    """Its client may have sent a request already, and would find the door shut."""

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"done")

    async with serving(handler, ServerSettings(drain_linger_s=5.0)) as served:
        fresh, used, begun = [await served.client() for _ in range(3)]
        assert (await used.ask(get("/"), "GET")).headers.get("connection") is None
        await begun.send(get("/")[:9])
        await until(lambda: any(one._buffer for one in served.server.connections))
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        await begun.send(get("/")[9:])
        for client in (fresh, used):
            await client.send(get("/"))
        for client in (fresh, used, begun):
            answer = await client.answer("GET")
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")
            assert await client.rest() == b""
        assert await draining == 0


@pytest.mark.row("O7")
async def test_who_comes_while_handshakes_end_is_the_next_listeners_client() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"done")

    loop = asyncio.get_running_loop()
    with reuse_port_socket("127.0.0.1", 0) as first, socket.socket() as client:
        address = first.getsockname()
        server = HttpServer(handler, ServerSettings(drain_linger_s=0.0))
        await server.listen(first)
        client.setblocking(False)
        draining = loop.create_task(server.drain(10.0, handshake_s=0.05))
        await until(lambda: not server.acceptor.open)
        connecting = loop.create_task(loop.sock_connect(client, address))
        assert await draining == 0
        with reuse_port_socket("127.0.0.1", address[1]) as second:
            second.setblocking(False)
            second.listen()
            await connecting
            (await loop.sock_accept(second))[0].close()


@pytest.mark.row("O7")
async def test_a_request_that_came_while_the_loop_was_busy_is_in_time() -> None:
    """Timers go before sockets: its connection had been idle for too long, and was closed."""

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"done")

    loop = asyncio.get_running_loop()
    settings = ServerSettings(idle_deadline_s=0.05)
    async with serving(handler, settings) as served:
        client = await served.client()
        await until(lambda: served.server.connections)

        def busy() -> None:
            loop.remove_reader(ours)
            time.sleep(2 * settings.idle_deadline_s)
            client.sock.sendall(get("/"))

        ours, theirs = socket.socketpair()
        with ours, theirs:
            loop.add_reader(ours, busy)
            theirs.send(b"!")
            assert (await client.answer("GET")).body == b"done"


@pytest.mark.row("O7")
async def test_an_answer_that_is_still_read_is_read_to_its_end() -> None:
    """It was written, so its connection counted as idle, and was cut as those are."""
    body = b"x" * 3_000_000

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, body)

    settings = ServerSettings(drain_linger_s=0.05)
    async with serving(handler, settings, send_bytes=16 * 1024) as served:
        slow, idle = await served.client(receive_bytes=16 * 1024), await served.client()
        await slow.send(get("/"))
        await until(lambda: any(one._writable for one in served.server.connections))
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        assert await idle.rest() == b""
        answer = await slow.answer("GET")
        assert (answer.whole, answer.body) == (True, body)
        # It gets no further request, as others that are idle.
        assert await slow.rest() == b""
        assert await draining == 0


@pytest.mark.row("O7")
async def test_an_answer_begun_before_a_drain_ends_its_connection() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        exchange.begin(200, TEXT)
        begun.set()
        await go_on.wait()
        exchange.finish()

    async with serving(handler, ServerSettings(drain_linger_s=0.01)) as served:
        client = await served.client()
        await client.send(get("/"))
        await begun.wait()
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        await asyncio.sleep(0)
        go_on.set()
        answer = await client.answer("GET")
        assert answer.whole
        assert "connection" not in answer.headers
        assert await draining == 0


@pytest.mark.row("O7")
async def test_who_waits_at_the_door_is_served_in_a_drain() -> None:
    """Connected by the kernel, not accepted yet: closing the listener would reset them."""

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"done")

    async with serving(handler) as served:
        waiting = []
        for _ in range(5):  # without a turn of the loop in between
            sock = socket.create_connection(("127.0.0.1", served.port))
            sock.sendall(get("/"))
            waiting.append(Client(sock))
        served.clients.extend(waiting)
        assert not served.server.connections
        draining = asyncio.get_running_loop().create_task(served.server.drain(10.0))
        for client in waiting:
            assert (await client.answer("GET")).body == b"done"
        assert await draining == 0
        with pytest.raises(ConnectionError):
            await Client.connect(served.port)


async def test_a_drain_ends() -> None:
    entered = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with serving(handler) as served:
        client = await served.client()
        await client.send(get("/"))
        await entered.wait()
        assert await served.server.drain(0.02) == 1
        assert await client.rest() == b""
