"""A client that reads slowly slows its replica down; it costs no memory and nobody else's time."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.raw import (
    CHAT,
    DONE,
    ROLE,
    STREAM_HEAD,
    TOKEN,
    USAGE,
    Peer,
    Upstream,
    answering,
    chat,
    chunk,
    ok,
    post,
    stream,
    until,
)
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings, UpstreamSettings

SMALL = 16 * 1024
TALE = b'data: {"choices":[{"delta":{"content":"' + b"x" * 4000 + b'"}}]}\n\n'
SETTINGS = Settings(
    server=ServerSettings(write_high_water_bytes=32 * 1024, write_stall_deadline_s=0.2),
    upstream=UpstreamSettings(between_chunks_deadline_s=0.1),
)


class Talker:
    """Streams without end, or `events` of it; notes how much it got rid of."""

    def __init__(self, events: int = 1_000_000) -> None:
        self.events = events
        self.sent_bytes = 0
        self.ended = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(ROLE))
        try:
            for _ in range(self.events):
                await peer.send(chunk(TALE))
                self.sent_bytes += len(TALE)
            await peer.send(chunk(DONE) + chunk(b""))
        except ConnectionError:
            pass
        self.ended.set()


async def stalled(talker: Talker) -> int:
    """Bytes sent once the replica cannot send any more."""
    before = -1
    while before != talker.sent_bytes:
        before = talker.sent_bytes
        await asyncio.sleep(0.05)
    return before


@pytest.mark.row("T3")
async def test_the_replica_is_made_to_wait() -> None:
    talker = Talker()
    settings = Settings(server=ServerSettings(write_high_water_bytes=32 * 1024))
    async with Upstream(talker) as upstream:
        async with gateway(upstream.url, settings=settings, send_bytes=SMALL) as bench:
            client = await bench.client(receive_bytes=SMALL)
            await client.send(post(CHAT, chat(stream=True)))
            # What the kernel's buffers hold, and ours.
            assert await stalled(talker) < 8_000_000
            [connection] = bench.server.connections
            assert connection._transport is not None
            assert connection._transport.get_write_buffer_size() < 32 * 1024 + 512 * 1024
            # Other clients do not feel it.
            other = await bench.client()
            await other.send(post(CHAT, chat(stream=True)))
            await other.through(b"xxxx")
            other.close()


@pytest.mark.row("T3")
async def test_a_paused_replica_does_not_time_out() -> None:
    """Its silence was ours: the deadline between chunks does not run meanwhile."""
    talker = Talker(events=500)
    settings = Settings(
        server=ServerSettings(write_high_water_bytes=32 * 1024),
        upstream=UpstreamSettings(between_chunks_deadline_s=0.6),
    )
    async with Upstream(talker) as upstream:
        async with gateway(upstream.url, settings=settings, send_bytes=SMALL) as bench:
            client = await bench.client(receive_bytes=SMALL)
            await client.send(post(CHAT, chat(stream=True)))
            await stalled(talker)
            await asyncio.sleep(0.7)
            answer = await client.answer()
            assert answer.whole
            assert len(answer.data) == 500 + 2
            assert answer.data[-1] == b"[DONE]"


@pytest.mark.row("T3")
async def test_one_who_does_not_read_at_all_is_cut_and_its_replica_freed() -> None:
    talker = Talker()
    async with Upstream(talker) as upstream:
        async with gateway(upstream.url, settings=SETTINGS, send_bytes=SMALL) as bench:
            client = await bench.client(receive_bytes=SMALL)
            await client.send(post(CHAT, chat(stream=True)))
            await asyncio.wait_for(talker.ended.wait(), 10)
            await until(lambda: bench.idle)
            assert not (await client.answer()).whole
            assert bench.outcomes() == {("200", "client_gone"): 1}


async def test_the_connection_of_a_slow_answer_serves_the_next_request() -> None:
    """It went back to the pool paused, and the next request on it waited for its deadline."""
    body = b"x" * 3_000_000

    async def script(peer: Peer) -> None:
        while True:
            try:
                await peer.asked()
            except EOFError:
                return
            await peer.send(ok(body))

    settings = Settings(server=ServerSettings(write_high_water_bytes=32 * 1024))
    async with Upstream(script) as upstream:
        async with gateway(upstream.url, settings=settings, send_bytes=SMALL) as bench:
            client = await bench.client(receive_bytes=SMALL)
            for _ in range(3):
                answer = await client.ask(post(CHAT, chat()))
                assert (answer.whole, answer.body) == (True, body)
            assert len(upstream.peers) == 1


async def test_an_answer_held_to_its_end_pauses_no_other_request() -> None:
    """It was sent when its replica's connection was in the pool again, which the client's pause
    then held for good: the next request on it waited for its deadline."""
    held = answering(stream(b": %b\n\n" % (b"x" * 4000), ROLE, USAGE, DONE))
    settings = Settings(
        server=ServerSettings(write_high_water_bytes=32 * 1024),
        upstream=UpstreamSettings(first_byte_deadline_s=1.0),
    )
    async with Upstream(held) as one, Upstream(held) as other:
        async with gateway(one.url, other.url, settings=settings, send_bytes=SMALL) as bench:
            client = await bench.client(receive_bytes=SMALL)
            await client.send(post(CHAT, chat(stream=True)) * 60)
            await until(lambda: [one._writable for one in bench.server.connections] != [None])
            patient = await bench.client()
            for _ in range(4):
                answer = await patient.ask(post(CHAT, chat(stream=True)))
                assert (answer.status, answer.whole) == (200, True)


@pytest.mark.row("T4")
@pytest.mark.slow
@pytest.mark.long
async def test_many_slow_readers_cost_what_each_may(
    long: bool, figure: Callable[[str], None]
) -> None:
    crowd = 500 if long else 40
    talker = Talker()
    high_water_bytes = 32 * 1024
    settings = Settings(server=ServerSettings(write_high_water_bytes=high_water_bytes))
    async with Upstream(talker) as upstream:
        async with gateway(upstream.url, settings=settings, send_bytes=SMALL) as bench:
            clients = [await bench.client(receive_bytes=SMALL) for _ in range(crowd)]
            for client in clients:
                await client.send(post(CHAT, chat(stream=True)))
                await client.through(b"xxxx")
            await stalled(talker)
            buffered = [
                connection._transport.get_write_buffer_size()
                for connection in bench.server.connections
            ]
            assert len(buffered) == crowd
            # One read of a replica's socket may come after the mark.
            assert 0 < max(buffered) < high_water_bytes + 512 * 1024
            other = await bench.client()
            await other.send(post(CHAT, chat(stream=True)))
            await other.through(b"xxxx")
            other.close()
    figure(
        f"{crowd} slow readers: at most {max(buffered) // 1024} KiB buffered for one, "
        f"{sum(buffered) // crowd // 1024} KiB on average"
    )


async def test_a_slow_upload_is_not_sent_on_before_it_is_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(ok())

    body = chat("x" * 3000)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        request = post(CHAT, body)
        await client.send(request[:-1])
        await asyncio.sleep(0.01)
        assert not upstream.peers
        await client.send(request[-1:])
        assert (await client.answer()).status == 200
        assert upstream.asked[0].body == body


async def test_a_token_at_a_time_passes_as_it_comes() -> None:
    """Nothing is gathered: each event is at the client before the next is sent."""
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(ROLE))
        for _ in range(5):
            seen.clear()
            await peer.send(chunk(TOKEN))
            await seen.wait()
        await peer.send(chunk(DONE) + chunk(b""))

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        await client.send(post(CHAT, chat(stream=True)))
        for _ in range(5):
            await client.through(b'word"}}]}\n\n')
            seen.set()
        assert await client.through(b"0\r\n\r\n")
