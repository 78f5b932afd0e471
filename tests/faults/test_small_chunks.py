"""Bytes in very many pieces: nobody else waits for their end, and a body that is nearly all framing
is refused.

One read was parsed to its end, whatever was in it, and libuv reads one socket up to 32 times in a
turn: 12 MB of small chunks held the loop for seconds. Of extensions a gigabyte was taken for a
megabyte of body, and after a 401 all that still came was parsed. A stream without an end of line
was searched from its beginning again with each chunk.
"""

import asyncio
import contextlib

import pytest

from tests.http.handlers import TEXT
from tests.machine import slowness
from tests.raw import (
    CHAT,
    DONE,
    MESSAGES,
    STREAM_HEAD,
    TOKEN,
    Client,
    Peer,
    Script,
    Upstream,
    chat,
    chunk,
    post,
    until,
)
from tests.support import gateway, serving
from tests.turns import counted
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import RequestError
from tokenlane.http.request_body import DISCARD_LIMIT_BYTES
from tokenlane.http.server import Exchange

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
SMALL = chunk(b"x" * 24)


async def whole(exchange: Exchange) -> None:
    """Answers with the size of the body."""
    body = await exchange.read_body()
    exchange.respond(200, TEXT, b"%d" % len(body))


async def send_all(client: Client, data: bytes) -> int:
    """Until the other side ends the connection; how much it took."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < len(data):
            await client.loop.sock_sendall(client.sock, data[sent : sent + 65536])
            sent += 65536
    return sent


@pytest.mark.row("O11")
@pytest.mark.slow
async def test_a_body_of_small_chunks_is_parsed_in_many_turns() -> None:
    count = 250_000
    settings = ServerSettings(body_limit_bytes=1 << 30)
    async with serving(whole, settings) as served:
        clients = [await served.client() for _ in range(3)]
        async with counted() as turns:
            sent = [client.send(HEAD + SMALL * count + chunk(b"")) for client in clients]
            answers = await asyncio.gather(*sent, *(client.answer() for client in clients))
    for answer in answers[3:]:
        assert answer is not None
        assert answer.body == b"%d" % (24 * count)
    assert turns.short(), turns


async def test_what_is_pipelined_behind_small_chunks_is_answered() -> None:
    async with serving(whole) as served:
        client = await served.client()
        body = HEAD + SMALL * 5000 + chunk(b"")
        await client.send(body + body + post("/", b"abc"))
        answers = [await client.answer() for _ in range(3)]
    assert [answer.body for answer in answers] == [b"120000", b"120000", b"3"]


@pytest.mark.parametrize("settings", [ServerSettings(pipelined_limit_bytes=100)])
async def test_a_client_that_leaves_in_the_middle_is_noticed(settings: ServerSettings) -> None:
    async with serving(whole, settings) as served:
        client = await served.client()
        await client.send(HEAD + SMALL * 5000)
        client.close()
        await until(lambda: not served.server.connections)


@pytest.mark.row("H5")
@pytest.mark.parametrize(
    "piece",
    [
        chunk(b"x"),
        b"1;" + b"e" * 1000 + b"\r\nx\r\n",
        b"18;" + b"e" * 20 + b"\r\n" + b"x" * 24 + b"\r\n",
    ],
    ids=["one-byte", "extension", "short-extension"],
)
async def test_a_body_that_is_nearly_all_framing_is_refused(piece: bytes) -> None:
    async with serving(whole) as served:
        client = await served.client()
        data = piece * (4_000_000 // len(piece))
        async with counted() as turns:
            sending = asyncio.get_running_loop().create_task(send_all(client, HEAD + data))
            answer = await client.answer()
            await client.gone()
            await sending
    assert (answer.status, answer.error["code"]) == (400, "chunked")
    assert turns.short(), turns


EXTENDED = b"40;" + b"e" * 900 + b"\r\n" + b"x" * 64 + b"\r\n"
TRAILER = b"t: " + b"v" * 897 + b"\r\n"


@pytest.mark.row("H5")
@pytest.mark.parametrize("piece_bytes", [0, 500])
@pytest.mark.parametrize(
    ("extended", "trailers", "status"),
    [
        (18, 0, 200),  # 16 KB and a quarter of the payload
        (19, 0, 400),
        (0, 9, 200),  # 8 KB
        (0, 10, 400),
        (8, 9, 200),  # and both of them are framing
        (11, 9, 400),
    ],
)
async def test_extensions_and_trailers_are_bounded_in_all(
    extended: int, trailers: int, status: int, piece_bytes: int
) -> None:
    """Every line of them is short enough."""
    async with serving(whole) as served:
        client = await served.client()
        chunks = EXTENDED * extended or chunk(b"x" * 64)
        data = HEAD + chunks + b"0\r\n" + TRAILER * trailers + b"\r\n"
        with contextlib.suppress(ConnectionError):  # refused in the middle
            await client.send(data, piece_bytes)
        answer = await client.answer()
    assert answer.status == status
    assert answer.body == b"%d" % (64 * extended or 64) or answer.error["code"] == "chunked"


@pytest.mark.row("H5")
@pytest.mark.parametrize(("trailers", "is_whole"), [(9, True), (10, False)])
async def test_trailers_of_a_replica_are_bounded_in_all(trailers: int, is_whole: bool) -> None:
    end = b"0\r\n" + TRAILER * trailers + b"\r\n"
    script = streaming(STREAM_HEAD + chunk(TOKEN), TOKEN, 1, chunk(DONE) + end)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
    assert (answer.status, answer.whole) == (200, is_whole)
    assert b"vvv" not in answer.body


@pytest.mark.parametrize("payload_bytes", [100, 1000, 70_000])
async def test_honest_chunks_are_taken(payload_bytes: int) -> None:
    size = 2_100_000
    async with serving(whole) as served:
        pieces = chunk(b"x" * payload_bytes) * (size // payload_bytes)
        answer = await served.ask(HEAD + pieces + chunk(b""))
    assert answer.body == b"%d" % (size // payload_bytes * payload_bytes)


@pytest.mark.row("H13")
@pytest.mark.parametrize("piece", [SMALL, chunk(b"x"), b"1;" + b"e" * 1000 + b"\r\nx\r\n"])
async def test_after_a_refusal_nothing_more_is_parsed(piece: bytes) -> None:
    async def refusing(exchange: Exchange) -> None:
        raise RequestError(401, "No.")

    async with serving(refusing) as served:
        client = await served.client()
        await client.send(HEAD)
        assert (await client.answer()).status == 401
        [connection] = served.server.connections
        body = connection.body
        await send_all(client, piece * (4_000_000 // len(piece)))
        await client.gone()
        # What is drained, and the share of a turn in which it was too much.
        assert body._received_bytes + body._framing_bytes < DISCARD_LIMIT_BYTES + 256 * 1024


async def taken(client: Client) -> int:
    """How many bytes came, up to the last chunk or the end of the connection."""
    size, tail = 0, b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        data = await client.more()
        if not data:
            break
        size += len(data)
        tail = (tail + data)[-7:]
    return size


def streaming(head: bytes, piece: bytes, count: int, end: bytes) -> Script:
    """Streams `count` chunks of `piece`."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        with contextlib.suppress(ConnectionError):
            await peer.send(head + chunk(piece) * count + end)

    return script


END = chunk(b"\n\n" + TOKEN + DONE) + chunk(b"")


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    ("piece", "count"),
    [
        (b"x", 150_000),
        (b"data:\n", 200_000),
        (b"\n", 150_000),
        (b'data:{"finish_reason":"abort"\n', 100_000),
    ],
    ids=["no-newline", "lines", "newlines", "abort"],
)
async def test_a_stream_of_small_chunks_is_read_in_many_turns(
    path: str, piece: bytes, count: int
) -> None:
    script = streaming(STREAM_HEAD + chunk(TOKEN), piece, count, END)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        async with counted() as turns:
            await client.send(post(path, chat(stream=True)))
            assert await taken(client) > len(chunk(piece)) * count
    assert turns.short(), turns
    assert turns.whole_s < count * 20e-6 * slowness()


@pytest.mark.row("O11")
@pytest.mark.slow
async def test_a_plain_answer_of_small_chunks_is_read_in_many_turns() -> None:
    head = STREAM_HEAD.replace(b"text/event-stream", b"text/plain")
    script = streaming(head, b"x", 700_000, chunk(b""))
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        async with counted() as turns:
            await client.send(post(CHAT, chat()))
            assert await taken(client) > 6 * 700_000
    assert turns.short(), turns
