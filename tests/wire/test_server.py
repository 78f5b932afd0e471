"""The server over real sockets: every answer it makes itself, and the life of a connection."""

import asyncio
import socket

import pytest

from proxy.errors import RequestError
from proxy.settings import ServerSettings
from proxy.wire.server import Exchange
from tests.raw import Client, chunk, get, post, until
from tests.support import serving
from tests.wire.heads import BAD_HEADS, CANARY, GOOD_HEADS

TEXT = ((b"content-type", b"text/plain"),)
CHUNKED_POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def echo(exchange: Exchange) -> None:
    """Says what it was asked, and the body."""
    body = await exchange.read_body()
    exchange.respond(200, TEXT, exchange.head.target + b" " + body)


async def never(exchange: Exchange) -> None:
    raise AssertionError("this request must not reach a handler")


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
        await until(lambda: connection._room is not None)
        await asyncio.sleep(0.05)
        assert answered < 100
        for _ in range(requests):
            assert len((await client.answer("GET")).body) == len(body)
        await sending
    assert answered == requests


async def expecting(client: Client, body: bytes) -> None:
    head = f"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {len(body)}"
    await client.send(head.encode() + b"\r\n\r\n")


@pytest.mark.row("H12")
async def test_expect_100_continue() -> None:
    async with serving(echo) as served:
        client = await served.client()
        for _ in range(2):
            await expecting(client, b"hi")
            assert await client.through(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"hi")
            assert (await client.answer()).body == b"/ hi"


@pytest.mark.row("H12")
async def test_no_100_when_the_body_is_not_wanted() -> None:
    async def handler(exchange: Exchange) -> None:
        raise RequestError(404, "No.", code="no")

    async with serving(handler) as served:
        client = await served.client()
        await expecting(client, b"hi")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        # Whether the body comes or the next request is unknown, so nothing more is read.
        await client.send(b"hi" + get("/next"))
        assert await client.rest() == b""


@pytest.mark.row("H13")
async def test_an_early_answer_lets_a_small_rest_pass() -> None:
    async def handler(exchange: Exchange) -> None:
        exchange.respond(404, TEXT, b"no")

    async with serving(handler) as served:
        client = await served.client()
        for rest_bytes in (1, 60_000):
            await client.send(
                b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % rest_bytes
            )
            assert (await client.answer()).status == 404
            await client.send(get("/hidden")[:1] * rest_bytes)
        framed = chunk(get("/hidden")) + chunk(b"")
        await client.send(CHUNKED_POST)
        assert (await client.answer()).status == 404
        await client.send(framed + get("/next"))
        assert (await client.answer("GET")).status == 404
        client.close()


@pytest.mark.row("H13")
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_early_answer_survives_a_large_upload(chunked: bool) -> None:
    """Closing with unread bytes resets the connection, and the answer with it."""

    async def handler(exchange: Exchange) -> None:
        exchange.respond(401, TEXT, b"no")

    body = b"x" * 3_000_000
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    head = f"POST / HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()
    async with serving(handler) as served:
        client = await served.client()
        await client.send(head + (chunk(body) + chunk(b"") if chunked else body))
        answer = await client.answer()
        assert (answer.status, answer.body) == (401, b"no")
        assert await client.rest() == b""


LIMITED = ServerSettings(body_limit_bytes=1000)


@pytest.mark.row("O6")
async def test_413_by_length() -> None:
    async with serving(never, LIMITED) as served:
        client = await served.client()
        await client.send(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert (await served.ask(post("/", b"x" * 10_000_000))).status == 413


@pytest.mark.row("O6")
async def test_413_by_chunks() -> None:
    async with serving(echo, LIMITED) as served:
        client = await served.client()
        await client.send(CHUNKED_POST + chunk(b"x" * 1000) + chunk(b""))
        assert (await client.answer()).status == 200
        # The upload goes on behind the refusal, which arrives nevertheless.
        await client.send(CHUNKED_POST + chunk(b"x" * 900))
        await asyncio.sleep(0.01)
        await client.send(chunk(b"x" * 101))
        for _ in range(50):
            await client.send(chunk(b"x" * 10_000))
            await asyncio.sleep(0)
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("body", [b"0x1\r\na\r\n", b"1\na\r\n", b"2\r\nabc\r\n", b"zz"])
@pytest.mark.parametrize("later", [False, True])
async def test_a_malformed_chunked_body(body: bytes, later: bool) -> None:
    refused: list[int] = []
    entered = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        await echo(exchange)

    async with serving(
        handler, on_refused=lambda exchange: refused.append(exchange.status)
    ) as served:
        client = await served.client()
        await client.send(CHUNKED_POST + (b"" if later else body))
        if later:
            await entered.wait()
            await client.send(body)
        await client.send(get("/hidden") + b"x" * 100_000 + b"\r\n")
        answer = await client.answer()
        assert (answer.status, answer.error["code"]) == (400, "chunked")
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""
        # It is told of once: by the handler, or by the server where there was none.
        assert len(refused) == (0 if entered.is_set() else 1)


async def test_a_body_in_bytes() -> None:
    body = bytes(range(256))
    async with serving(echo) as served:
        client = await served.client()
        await client.send(post("/", body), 1)
        assert (await client.answer()).body == b"/ " + body
        framed = chunk(body[:100]) + chunk(body[100:]) + b"0\r\nA: b\r\n\r\n"
        await client.send(CHUNKED_POST + framed + get("/next"), 1)
        assert (await client.answer()).body == b"/ " + body
        assert (await client.answer("GET")).body == b"/next "


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


async def test_no_delay_is_set() -> None:
    async with serving(echo) as served:
        await served.client()
        await until(lambda: served.server.connections)
        [connection] = served.server.connections
        assert connection._transport is not None
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
