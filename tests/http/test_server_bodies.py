"""Bodies of requests over real sockets: asked for, too large, malformed, answered early."""

import asyncio

import pytest

from tests.http.handlers import TEXT, echo, never
from tests.raw import Client, chunk, get, post
from tests.support import serving
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http.server import Exchange

CHUNKED_POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


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


async def test_a_malformed_body_that_nobody_reads_yet_is_told_of_once() -> None:
    """The request of a handler that waited for something else was recorded by both."""
    refused: list[int] = []
    entered, left = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with serving(
        handler, on_refused=lambda exchange: refused.append(exchange.status)
    ) as served:
        client = await served.client()
        await client.send(CHUNKED_POST)
        await entered.wait()
        await client.send(b"zz\r\n")
        assert (await client.answer()).status == 400
        await left.wait()
    assert not refused


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
