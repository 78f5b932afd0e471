"""A client leaves: its replica sees it at once, nothing is counted any more, nothing runs on.

Routers that let the request run on kept replicas busy for half an hour; routers whose counts were
lowered by a paired call lost one each time.
"""

import asyncio
import statistics
import time
from collections.abc import Callable

import pytest

from tests.raw import (
    CHAT,
    STREAM_HEAD,
    TOKEN,
    Client,
    Peer,
    Upstream,
    answering,
    chat,
    chunk,
    ok,
    post,
    until,
)
from tests.support import gateway, slow_tokenizer

LEAVES: dict[str, Callable[[Client], None]] = {"FIN": Client.close, "RST": Client.reset}


class Listening:
    """A replica that says `start`, and notes when it was left."""

    def __init__(self, start: bytes = b"") -> None:
        self.start = start
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        self.left_s = 0.0

    async def __call__(self, peer: Peer) -> None:
        await peer.asked()
        if self.start:
            await peer.send(self.start)
        self.asked.set()
        await peer.gone()
        self.left_s = time.monotonic()
        self.left.set()


async def left_after_s(script: Listening, body: bytes, leave: Callable[[Client], None]) -> float:
    """Seconds from a client's leaving until its replica sees the connection end."""
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        await client.send(post(CHAT, body))
        await asyncio.wait_for(script.asked.wait(), 10)
        if b"event-stream" in script.start:
            await client.through(b"word")
        await until(lambda: not bench.idle)
        at_s = time.monotonic()
        leave(client)
        await asyncio.wait_for(script.left.wait(), 10)
        await until(lambda: bench.idle)
        await until(bench.outcomes)
        [(_, outcome)] = bench.outcomes()
        assert outcome == "client_gone"
    return script.left_s - at_s


STATES = {
    "before-the-head": (b"", chat()),
    "before-the-head-of-a-stream": (b"", chat(stream=True)),
    "before-the-body": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", chat()),
    "within-the-body": (b"HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\nabc", chat()),
    "within-a-stream": (STREAM_HEAD + chunk(TOKEN), chat(stream=True)),
}


@pytest.mark.row("T5")
@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize(("start", "body"), STATES.values(), ids=STATES)
async def test_the_replica_sees_it_at_once(
    start: bytes, body: bytes, leave: Callable[[Client], None]
) -> None:
    # A busy machine may have taken the processor away once; it does not do so each time.
    times_s = [await left_after_s(Listening(start), body, leave) for _ in range(3)]
    assert statistics.median(times_s) < 0.1


async def test_before_the_connection_to_the_replica_stands() -> None:
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        await client.send(post(CHAT, chat()))
        client.close()
        await until(bench.outcomes)
        assert bench.idle


@pytest.mark.row("T5")
async def test_while_its_body_uploads() -> None:
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        for leave in LEAVES.values():
            client = await bench.client()
            await client.send(post(CHAT, chat())[:-3])
            await until(lambda: len(asyncio.all_tasks()) > 1)
            leave(client)
            await until(lambda: not bench.server.connections)
        await until(lambda: bench.outcomes() == {("499", "client_gone"): 2})
        assert not upstream.asked


@pytest.mark.row("T5")
async def test_while_its_prompt_is_tokenized() -> None:
    """The job is finished or dropped, and no replica hears of it."""
    body = chat("a longer story about words " * 20_000)
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, tokenizer=slow_tokenizer()) as bench:
            client = await bench.client()
            await client.send(post(CHAT, body))
            await until(lambda: bench.tokens.threads.queued_jobs)
            client.close()
            await until(lambda: bench.outcomes() == {("499", "client_gone"): 1})
            assert bench.idle
            await until(lambda: bench.tokens.threads.queued_jobs == 0)
            assert not upstream.asked
            answer = await bench.ask(post(CHAT, body))
            assert answer.status == 200


async def test_between_two_requests_it_is_no_loss() -> None:
    async with Upstream(answering(ok())) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(3):
            assert (await client.ask(post(CHAT, chat()))).status == 200
        client.reset()
        await until(lambda: not bench.server.connections)
        assert bench.outcomes() == {("200", "ok"): 3}
        # The connection to the replica stays for others.
        assert (await bench.ask(post(CHAT, chat()))).status == 200
        assert len(upstream.peers) == 1


@pytest.mark.row("T5")
async def test_at_the_last_byte_others_are_not_hurt() -> None:
    """Clients that leave while their answer ends, and others that take over the connections."""
    async with Upstream(answering(ok(b'{"choices":[]}'))) as upstream:
        async with gateway(upstream.url) as bench:

            async def leaving(number: int) -> None:
                client = await bench.client()
                await client.send(post(CHAT, chat()))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                client.reset() if number % 2 else client.close()

            async def staying() -> None:
                client = await bench.client()
                for _ in range(4):
                    assert (await client.ask(post(CHAT, chat()))).status == 200

            async with asyncio.TaskGroup() as group:
                for number in range(60):
                    group.create_task(leaving(number))
                    group.create_task(staying())
            await until(lambda: bench.idle)
            assert sum(bench.outcomes().values()) >= 240


@pytest.mark.row("T5")
async def test_bytes_between_a_clients_end_and_its_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A cancelled request runs a turn of the loop later. What its replica sends meanwhile is for
    nobody, and must not fail."""
    script = Listening(STREAM_HEAD + chunk(TOKEN) * 3)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        await client.send(post(CHAT, chat(stream=True)))
        await client.through(b"word")
        [life] = bench.gateway.in_hand
        [connection] = bench.server.connections
        assert life.relay is not None
        assert connection._transport is not None
        loop = asyncio.get_running_loop()
        connection._transport.abort()
        for _ in range(2):
            loop.call_soon(life.relay.on_body, chunk(TOKEN), [TOKEN])
        await asyncio.wait_for(script.left.wait(), 10)
    assert not caplog.records
