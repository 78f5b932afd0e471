"""Replicas that do not stop talking: what is kept of it is bounded, and silence is not needed to
end it."""

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable

import pytest

from tests.raw import CHAT, STREAM_HEAD, Peer, Script, Upstream, chat, chunk, post, until
from tests.support import gateway
from tokenlane.config.settings import Settings, UpstreamSettings
from tokenlane.relay.response import Relay

COMMENT = chunk(b": still here\n\n" * 100)
BIG = b"x" * 16_000
# Two bytes each, which are no object of Python's own: 7 on the wire.
TINY = chunk(b"xy") * 2000
_ENTRY_BYTES = sys.getsizeof((b"", [])) + 8


def repeating(start: bytes, piece: bytes) -> Script:
    """Says `piece` for ever."""

    async def script(peer: Peer) -> None:
        await peer.asked()
        with contextlib.suppress(ConnectionError):
            await peer.send(start)
            while True:
                await peer.send(piece)

    return script


@pytest.mark.row("U4")
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 100),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 1000),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 20),
        (b"", b"HTTP/1.1 102 Processing\r\na: b\r\n\r\n" * 20),
        (STREAM_HEAD, b"1;" + b"a" * 1000),
        (STREAM_HEAD + b"0\r\n", b"a: b\r\n" * 100),
    ],
    ids=["fields", "value", "continue", "processing", "extension", "trailers"],
)
async def test_what_never_becomes_an_answer_ends(start: bytes, piece: bytes) -> None:
    async with Upstream(repeating(start, piece)) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert answer.status in (200, 502)
        assert answer.whole == (answer.status == 502)
        await until(lambda: not upstream.scripts)


@pytest.mark.row("U4")
async def test_a_head_that_crawls_ends_at_its_deadline() -> None:
    settings = Settings(upstream=UpstreamSettings(first_byte_deadline_s=0.1))

    async def script(peer: Peer) -> None:
        await peer.asked()
        with contextlib.suppress(ConnectionError):
            for byte in b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000:
                await peer.send(bytes([byte]))
                await asyncio.sleep(0.01)

    async with Upstream(script) as upstream:
        async with gateway(upstream.url, settings=settings) as bench:
            assert (await bench.ask(post(CHAT, chat()))).status == 504


def kept_bytes() -> int:
    """What relays that are under way hold of their answers, as Python holds it: a byte of its own
    takes 34 bytes and its place in a list."""
    kept = 0
    for relay in [one for one in gc.get_objects() if isinstance(one, Relay)]:
        if relay.done.done():
            continue
        for framed, payload in relay._held:
            kept += _ENTRY_BYTES + sum(map(sys.getsizeof, (framed, payload, *payload)))
        kept += sum(map(sys.getsizeof, (relay._pieces, *relay._pieces)))
        if relay._scanner is not None:
            kept += len(relay._scanner._carry)
    return kept


@pytest.mark.row("U4")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (STREAM_HEAD, COMMENT),
        (STREAM_HEAD, chunk(BIG)),
        (STREAM_HEAD + chunk(b"data: "), chunk(BIG)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk(BIG)),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", BIG),
        (STREAM_HEAD, TINY),
        (STREAM_HEAD, chunk(b":\n") * 2000),
        (STREAM_HEAD + chunk(b"data: "), TINY),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", TINY),
    ],
    ids=[
        "comments",
        "no-event",
        "one-event",
        "body",
        "open-ended",
        "tiny-no-event",
        "tiny-comments",
        "tiny-one-event",
        "tiny-body",
    ],
)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_body_without_a_token_is_not_gathered(
    start: bytes, piece: bytes, replicas: int, figure: Callable[[str], None]
) -> None:
    """Also where another replica could still take over, and the answer is held back."""
    script = repeating(start, piece)
    async with Upstream(script) as one, Upstream(script) as other:
        async with gateway(*[one.url, other.url][:replicas]) as bench:
            client = await bench.client()
            await client.send(post(CHAT, chat(stream=True)))
            most = 0
            for _ in range(4):
                await client.exactly(400_000)
                most = max(most, kept_bytes())
            client.close()
            await until(lambda: bench.idle)
    assert most < 600_000, most
    figure("1.6 MB without a token: less than 600 kB kept")
