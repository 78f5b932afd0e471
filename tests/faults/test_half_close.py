"""A client that closes its sending half has left: as in nginx, and unlike what RFC 9112 9.6 would
also allow. Clients of streams do not half-close, and a dead one must free its replica at once."""

import asyncio
import socket

import pytest

from tests.raw import CHAT, STREAM_HEAD, TOKEN, Peer, Upstream, chat, chunk, post, until
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings


@pytest.mark.row("T6")
@pytest.mark.parametrize("start", [b"", STREAM_HEAD + chunk(TOKEN)], ids=["before", "within"])
async def test_it_has_left(start: bytes) -> None:
    left = asyncio.Event()
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(start)
        asked.set()
        await peer.gone()
        left.set()

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        await client.send(post(CHAT, chat(stream=True)))
        await asyncio.wait_for(asked.wait(), 10)
        if start:
            await client.through(b"word")
        client.sock.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(left.wait(), 10)
        assert await client.rest() in (b"", b'"}}]}\n\n\r\n')
        await until(bench.outcomes)
        assert {outcome for _, outcome in bench.outcomes()} == {"client_gone"}


@pytest.mark.row("T6")
@pytest.mark.parametrize("high_water_bytes", [1024, 64 * 1024 * 1024], ids=["paused", "unsent"])
async def test_it_has_left_however_much_it_did_not_read(high_water_bytes: int) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        try:
            await peer.send(STREAM_HEAD + 200_000 * chunk(TOKEN))
            await peer.gone()
        except ConnectionError:
            pass
        left.set()

    settings = Settings(server=ServerSettings(write_high_water_bytes=high_water_bytes))
    async with Upstream(script) as upstream, gateway(upstream.url, settings=settings) as bench:
        client = await bench.client(receive_bytes=4096)
        await client.send(post(CHAT, chat(stream=True)))
        await until(lambda: upstream.asked)
        [connection] = bench.server.connections
        await until(connection._transport.get_write_buffer_size)
        client.sock.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(left.wait(), 10)
        await until(bench.outcomes)
        assert bench.outcomes() == {("200", "client_gone"): 1}
