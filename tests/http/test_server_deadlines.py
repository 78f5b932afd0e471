"""Deadlines of a client connection: slow heads and bodies, idling, answers nobody reads."""

import asyncio
import time

import pytest

from tests.http.handlers import TEXT, echo
from tests.raw import Client, get, post, until
from tests.support import serving
from tokenlane.config.settings import ServerSettings
from tokenlane.http.connection_states import BODY, CLOSING, DISCARDING, LINGERING
from tokenlane.http.deadline import NEVER
from tokenlane.http.server import Exchange


@pytest.mark.row("T1", "T2")
async def test_408_for_a_slow_head_and_a_slow_body() -> None:
    settings = ServerSettings(head_deadline_s=0.05, body_deadline_s=0.05)
    async with serving(echo, settings) as served:
        head, body = await served.client(), await served.client()
        await head.send(b"GET / HT")
        await body.send(post("/", b"hello")[:-1])
        for client, code in ((head, "head_timeout"), (body, "body_timeout")):
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (408, code)
            assert answer.headers["connection"] == "close"


@pytest.mark.row("T2")
async def test_a_body_that_nobody_asked_for_yet_is_not_late() -> None:
    """Its client waits for the 100, and the request perhaps for a place."""
    asking, request = asyncio.Event(), post("/", b"hello", "expect: 100-continue\r\n")

    async def handler(exchange: Exchange) -> None:
        await asking.wait()
        await echo(exchange)

    async with serving(handler, ServerSettings(body_deadline_s=0.05)) as served:
        client = await served.client()
        await client.send(request[:-5])
        await until(lambda: [one.state for one in served.server.connections] == [BODY])
        [connection] = served.server.connections
        assert connection._deadline.due_s == NEVER
        asking.set()
        await client.through(b"100 Continue\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")


@pytest.mark.row("T1", "T2")
async def test_a_byte_now_and_then_buys_no_time() -> None:
    settings = ServerSettings(head_deadline_s=0.1, body_deadline_s=0.1)
    async with serving(echo, settings) as served:
        for request in (get("/", "a: b\r\n" * 50), post("/", b"x" * 300)):
            client = await served.client()
            dripping = asyncio.get_running_loop().create_task(drip(client, request))
            assert (await client.answer()).status == 408
            dripping.cancel()


async def drip(client: Client, data: bytes) -> None:
    for at in range(len(data)):
        await client.send(data[at : at + 1])
        await asyncio.sleep(0.01)


@pytest.mark.row("T1")
async def test_idle_connections_are_closed() -> None:
    async with serving(echo, ServerSettings(idle_deadline_s=0.05)) as served:
        silent, used = await served.client(), await served.client()
        assert (await used.ask(get("/"), "GET")).status == 200
        assert await silent.rest() == b""
        assert await used.rest() == b""


@pytest.mark.row("T3")
async def test_a_client_that_never_reads_is_cut() -> None:
    settings = ServerSettings(write_stall_deadline_s=0.05)

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"x" * 8_000_000)

    async with serving(handler, settings, send_bytes=16 * 1024) as served:
        client = await served.client(receive_bytes=16 * 1024)
        await client.send(get("/"))
        await until(lambda: served.server.connections)
        await until(lambda: not served.server.connections)
        answer = await client.answer("GET")
        assert not answer.whole


@pytest.mark.parametrize("headers", ["", "Connection: close\r\n"])
async def test_a_small_answer_that_is_never_read_does_not_stay(headers: str) -> None:
    """Below the high-water mark nobody is told to pause, and a close waits for its bytes."""
    settings = ServerSettings(write_stall_deadline_s=0.05, idle_deadline_s=0.05)

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, b"x" * 250_000)

    async with serving(handler, settings, send_bytes=8 * 1024) as served:
        client = await served.client(receive_bytes=8 * 1024)
        await client.send(get("/", headers))
        await until(lambda: served.server.connections)
        await until(lambda: not served.server.connections)


async def test_the_last_answer_is_sent_before_the_short_deadline_behind_it_starts() -> None:
    """With stray bytes behind its request, a slow reader lost what was unsent after two seconds."""
    body = b"x" * 240_000

    async def handler(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, body)

    async with serving(handler, send_bytes=16 * 1024) as served:
        client = await served.client(receive_bytes=16 * 1024)
        await client.send(get("/", "connection: close\r\n") + b"\r\n")
        await until(lambda: [one.state for one in served.server.connections] == [LINGERING])
        [connection] = served.server.connections
        assert connection._deadline.due_s > time.monotonic() + 10.0
        answer = await client.answer("GET")
        assert (answer.whole, answer.body) == (True, body)
        await until(lambda: not connection.paused)
        assert connection._deadline.due_s < time.monotonic() + 2.0


@pytest.mark.row("T3")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "request_", "left"),
    [
        (DISCARDING, post("/", b"hello")[:-1], False),
        (LINGERING, get("/", "Connection: close\r\n") + b"G", True),
        (CLOSING, get("/", "Connection: close\r\n"), False),
    ],
    ids=["rest-of-body", "lingering", "closing"],
)
async def test_who_reads_again_has_no_more_time_for_the_rest(
    state: int, request_: bytes, left: bool
) -> None:
    """A client that had stopped to read and went on lost every deadline with that, and could keep
    its connection for good: by a body without an end, or by staying after its last answer."""
    settings = ServerSettings(
        write_stall_deadline_s=0.5, body_deadline_s=0.1, write_high_water_bytes=400 * 1024
    )

    async def handler(exchange: Exchange) -> None:
        exchange.begin(200, TEXT)
        for _ in range(50):
            exchange.write(b"x" * 20_000)
            await asyncio.sleep(0)  # a write of its own for each: transports tell between them
        exchange.finish()

    async with serving(handler, settings, send_bytes=16 * 1024) as served:
        client = await served.client(receive_bytes=16 * 1024)
        await client.send(request_)
        await until(lambda: [one._writable for one in served.server.connections] != [None])
        [connection] = served.server.connections
        while connection._writable is not None:
            client.unread += await client.more()
        assert connection.state == state
        if left:
            client.unread += await client.rest()
        await until(lambda: not served.server.connections)
