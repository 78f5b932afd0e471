"""The server over real sockets: every answer it makes itself, and the life of a connection."""

import asyncio
import socket

import pytest

from tests.http.handlers import TEXT, echo, never
from tests.http.heads import BAD_HEADS, CANARY, GOOD_HEADS
from tests.raw import Client, chunk, get, post, until
from tests.support import serving
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http.server import Exchange


@pytest.mark.parametrize(
    ("status", "code", "head"),
    [case[1:] for case in BAD_HEADS],
    ids=[case[0] for case in BAD_HEADS],
)
@pytest.mark.parametrize("piece_bytes", [0, 1], ids=["whole", "bytes"])
async def test_a_bad_head_gets_its_status(
    status: int, code: str, head: bytes, piece_bytes: int
) -> None:
    refused: list[int] = []
    settings = ServerSettings(head_deadline_s=5.0)
    async with serving(
        never, settings, on_refused=lambda exchange: refused.append(exchange.status)
    ) as served:
        client = await served.client()
        # Answered as soon as it is clear, so some of the bytes may find nobody.
        try:
            await client.send(head, piece_bytes if len(head) < 1000 else piece_bytes * 997)
        except ConnectionError:
            assert piece_bytes
        answer = await client.answer("GET")
        assert (answer.status, answer.whole) == (status, True)
        assert answer.error["code"] == code
        assert answer.headers["x-request-id"]
        assert answer.headers["connection"] == "close"
        assert CANARY.lower() not in answer.body.decode().lower()
        assert await client.rest() == b""
    assert refused == [status]


@pytest.mark.parametrize(
    ("method", "target", "length", "head"),
    [case[1:] for case in GOOD_HEADS],
    ids=[case[0] for case in GOOD_HEADS],
)
@pytest.mark.parametrize("piece_bytes", [0, 1], ids=["whole", "bytes"])
async def test_a_good_head_is_served_again_and_again(
    method: str, target: bytes, length: int | None, head: bytes, piece_bytes: int
) -> None:
    body = b"hello"[: length or 5]
    sent = chunk(body) + chunk(b"") if length is None else body[:length]
    async with serving(echo) as served:
        for _ in range(2):
            client = await served.client()
            await client.send(head + sent, piece_bytes if len(head) < 1000 else piece_bytes * 997)
            while True:
                answer = await client.answer(method)
                if answer.status != 100:
                    break
            assert (answer.status, answer.whole) == (200, True)
            assert answer.body == target + b" " + (body if length is None else body[:length])
            if b"HTTP/1.0" not in head:
                assert (await client.ask(get("/next"), "GET")).body == b"/next "


@pytest.mark.row("S1")
async def test_the_request_id_is_kept_or_made() -> None:
    async with serving(echo) as served:
        client = await served.client()
        kept = await client.ask(get("/", "X-Request-ID: mine-7\r\n"), "GET")
        assert kept.headers["x-request-id"] == "mine-7"
        made = {(await client.ask(get("/"), "GET")).headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        for odd in ("a b", "a" * 200, "\xe9"):
            answer = await client.ask(
                get("/").replace(b"\r\n\r\n", f"\r\nX-Request-Id: {odd}\r\n\r\n".encode("latin-1")),
                "GET",
            )
            assert answer.headers["x-request-id"] not in {odd, ""}


async def test_keep_alive_and_close() -> None:
    async with serving(echo) as served:
        client = await served.client()
        for number in range(5):
            answer = await client.ask(post("/x", b"%d" % number))
            assert answer.body == b"/x %d" % number
            assert "connection" not in answer.headers
        last = await client.ask(get("/", "Connection: close\r\n"), "GET")
        assert last.headers["connection"] == "close"
        assert await client.rest() == b""


async def test_empty_lines_before_a_request_are_forgiven() -> None:
    async with serving(echo) as served:
        client = await served.client()
        for piece_bytes in (0, 1):
            await client.send(b"\r\n" + get("/a"), piece_bytes)
            assert (await client.answer("GET")).body == b"/a "


@pytest.mark.parametrize("headers", ["", "Connection: keep-alive\r\n"])
async def test_http_1_0(headers: str) -> None:
    async with serving(echo) as served:
        client = await served.client()
        await client.send(f"POST / HTTP/1.0\r\n{headers}Content-Length: 2\r\n\r\nhi".encode())
        answer = await client.answer(version="1.0")
        assert answer.body == b"/ hi"
        assert answer.headers["connection"] == ("keep-alive" if headers else "close")
        if headers:
            await client.send(f"GET / HTTP/1.0\r\n{headers}\r\n".encode())
            assert (await client.answer("GET", "1.0")).body == b"/ "
        else:
            assert await client.rest() == b""


async def test_head_has_no_body() -> None:
    async with serving(echo) as served:
        client = await served.client()
        answer = await client.ask(b"HEAD /long HTTP/1.1\r\nhost: x\r\n\r\n", "HEAD")
        assert answer.headers["content-length"] == "6"
        assert (answer.body, answer.whole) == (b"", True)
        assert (await client.ask(get("/next"), "GET")).body == b"/next "


@pytest.mark.row("H10")
async def test_pipelined_requests_are_answered_in_order() -> None:
    seen = 0
    most_buffered = 0

    async def handler(exchange: Exchange) -> None:
        nonlocal seen, most_buffered
        seen += 1
        [connection] = served.server.connections
        most_buffered = max(most_buffered, len(connection._buffer))
        if seen == 1:
            await asyncio.sleep(0.02)
        exchange.respond(200, TEXT, exchange.path.encode())

    async with serving(handler) as served:
        client = await served.client()
        padding = f"a: {'b' * 1000}\r\n"
        requests = b"".join(get(f"/{number}", padding) for number in range(1000))
        sending = asyncio.get_running_loop().create_task(client.send(requests))
        for number in range(1000):
            answer = await client.answer("GET")
            assert answer.body == b"/%d" % number
        await sending
    # The limit, and what one read adds.
    assert most_buffered <= 64 * 1024 + 256 * 1024


@pytest.mark.row("H10")
async def test_a_pipelined_body_is_no_request() -> None:
    hidden = get("/hidden")
    async with serving(echo) as served:
        client = await served.client()
        await client.send(post("/a", hidden) + post("/b", b"") + get("/c"))
        bodies = [(await client.answer()).body for _ in range(3)]
        assert bodies == [b"/a " + hidden, b"/b ", b"/c "]


@pytest.mark.row("H11")
async def test_an_upgrade_is_ignored() -> None:
    hidden = get("/hidden")
    async with serving(echo) as served:
        client = await served.client()
        await client.send(
            post("/a", hidden, "Connection: Upgrade\r\nUpgrade: websocket\r\n") + get("/b")
        )
        assert [(await client.answer()).body for _ in range(2)] == [b"/a " + hidden, b"/b "]


async def test_a_client_that_does_not_read_gets_no_new_answers() -> None:
    """Answers of a client that only writes used to pile up without a bound."""
    answered = 0
    body = b"x" * 16 * 1024

    async def handler(exchange: Exchange) -> None:
        nonlocal answered
        answered += 1
        exchange.respond(200, TEXT, body)

    settings = ServerSettings(write_high_water_bytes=64 * 1024)
    async with serving(handler, settings, send_bytes=16 * 1024) as served:
        client = await served.client(receive_bytes=16 * 1024)
        requests = 3000
        sending = asyncio.get_running_loop().create_task(client.send(get("/") * requests))
        [connection] = served.server.connections
        await until(lambda: connection._writable is not None)
        await asyncio.sleep(0.05)
        assert answered < 100
        for _ in range(requests):
            assert len((await client.answer("GET")).body) == len(body)
        await sending
    assert answered == requests


async def test_no_delay_is_set() -> None:
    async with serving(echo) as served:
        await served.client()
        await until(lambda: served.server.connections)
        [connection] = served.server.connections
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_an_unforeseen_failure_is_an_error_in_shape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(exchange: Exchange) -> None:
        raise ZeroDivisionError(CANARY)

    async with serving(handler) as served:
        client = await served.client()
        answer = await client.ask(post("/", b"x"))
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert CANARY.encode() not in answer.body
        assert (await client.ask(get("/"), "GET")).status == 500
    assert CANARY in caplog.text


async def test_an_answer_in_pieces() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.begin(200, TEXT)
        for piece in (b"one", b"", b"two"):
            exchange.write(piece)
            await exchange.drain()
        exchange.finish()

    async with serving(handler) as served:
        client = await served.client()
        assert (await client.ask(get("/"), "GET")).body == b"onetwo"
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        answer = await client.answer("GET", "1.0")
        assert (answer.body, answer.whole) == (b"onetwo", True)
        assert "transfer-encoding" not in answer.headers


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_broken_answer_is_no_end(version: str) -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.begin(200, TEXT)
        exchange.write(b"one")
        await asyncio.sleep(0.01)
        raise RequestError(400, "Too late.")

    async with serving(handler) as served:
        client = await served.client()
        await client.send(f"GET / HTTP/{version}\r\nhost: x\r\n\r\n".encode())
        answer = await client.answer("GET", version)
        assert (answer.status, answer.whole) == (200, False)


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            exchange.respond(200, TEXT, b"into the void")

    async with serving(handler) as served:
        for leave in (Client.close, Client.reset, lambda one: one.sock.shutdown(socket.SHUT_WR)):
            entered.clear()
            cancelled.clear()
            client = await served.client()
            await client.send(get("/"))
            await entered.wait()
            leave(client)
            await asyncio.wait_for(cancelled.wait(), 5)


async def test_a_reload_still_drops_the_origin_that_is_answered_here() -> None:
    """Where pages of other origins may ask, a replica that knows of the origin answers it too."""

    async def forwarded(exchange: Exchange) -> None:
        exchange.respond(200, TEXT, exchange.head.forwarded)

    settings = ServerSettings(cors_origins=("https://app.example",))
    async with serving(forwarded, settings) as served:
        for _ in range(2):
            answer = await served.ask(get("/", "origin: https://app.example\r\n"), "GET")
            assert b"origin" not in answer.body
            served.server.configure(settings, frozenset())
