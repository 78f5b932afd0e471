"""Bodies are held within a budget, whatever is announced and however slowly it comes."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from tests.raw import CHAT, Answer, Client, Upstream, answering, chat, chunk, get, ok, post, until
from tests.support import gateway
from tokenlane.config.settings import ServerSettings, Settings

LIMIT_BYTES = 100_000
SETTINGS = Settings(server=ServerSettings(bodies_limit_bytes=LIMIT_BYTES))
BIG = chat("x" * 60_000)
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


def refused(answer: Answer) -> bool:
    return answer.status == 503 and answer.error["code"] == "out_of_memory"


@pytest.mark.row("O5")
async def test_what_does_not_fit_is_refused_before_it_is_read() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            first, second = await bench.client(), await bench.client()
            await first.send(post(CHAT, BIG)[:-1])
            await until(lambda: bench.server.state.body_memory.held_bytes == len(BIG))
            answer = await second.ask(post(CHAT, BIG)[:200])
            assert refused(answer)
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["connection"] == "close"
            # What fits, and what brings no body, is served meanwhile.
            third = await bench.client()
            assert (await third.ask(post(CHAT, chat()))).status == 200
            assert (await third.ask(get("/v1/models"), "GET")).status == 200
            await first.send(BIG[-1:])
            assert (await first.answer()).status == 200
            await until(lambda: bench.server.state.body_memory.held_bytes == 0)
            assert (await third.ask(post(CHAT, BIG))).status == 200
            assert len(upstream.asked) == 3
            assert bench.server.state.body_memory.held_bytes == 0


@pytest.mark.row("O5")
async def test_a_chunked_body_is_counted_as_it_comes() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            first, second = await bench.client(), await bench.client()
            await first.send(post(CHAT, BIG)[:-1])
            await until(lambda: bench.server.state.body_memory.held_bytes == len(BIG))
            await second.send(CHUNKED + chunk(b"x" * 30_000))
            await until(lambda: bench.server.state.body_memory.held_bytes == len(BIG) + 30_000)
            await second.send(chunk(b"x" * 30_000))
            assert refused(await second.answer())
            second.close()
            await first.send(BIG[-1:])
            assert (await first.answer()).status == 200
            await until(lambda: bench.server.state.body_memory.held_bytes == 0)


@pytest.mark.row("O5")
@pytest.mark.parametrize("leave", [Client.close, Client.reset])
async def test_whoever_leaves_frees_what_it_announced(leave: Callable[[Client], None]) -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            client = await bench.client()
            await client.send(post(CHAT, BIG)[:-1])
            await until(lambda: bench.server.state.body_memory.held_bytes == len(BIG))
            leave(client)
            await until(lambda: bench.server.state.body_memory.held_bytes == 0)


@pytest.mark.row("O5")
async def test_whoever_is_refused_holds_nothing_though_it_stays() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            stranger, other = await bench.client(), await bench.client()
            lost = b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % LIMIT_BYTES
            assert (await stranger.ask(lost)).status == 404
            assert bench.server.state.body_memory.held_bytes == 0
            assert (await other.ask(post(CHAT, BIG))).status == 200


@pytest.mark.row("O5")
async def test_a_body_larger_than_the_budget_comes_alone() -> None:
    body = chat("x" * 2 * LIMIT_BYTES)
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=SETTINGS) as bench:
            client, other = await bench.client(), await bench.client()
            assert (await client.ask(post(CHAT, body))).status == 200
            await other.send(post(CHAT, chat())[:-1])
            await until(lambda: bench.server.state.body_memory.held_bytes > 0)
            assert refused(await client.ask(post(CHAT, body)[:200]))


@pytest.mark.row("O5")
async def test_without_memory_nothing_that_brings_a_body_is_begun() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url) as bench:
            begun, fresh = await bench.client(), await bench.client()
            await begun.send(post(CHAT, BIG)[:-1])
            await until(lambda: bench.server.state.body_memory.held_bytes > 0)
            bench.server.state.body_memory.short = True
            assert refused(await fresh.ask(post(CHAT, chat())))
            other = await bench.client()
            assert (await other.ask(get("/health"), "GET")).status == 200
            await begun.send(BIG[-1:])
            assert (await begun.answer()).status == 200
            bench.server.state.body_memory.short = False
            assert (await other.ask(post(CHAT, chat()))).status == 200


@pytest.mark.row("O5")
@pytest.mark.slow
@pytest.mark.long
async def test_many_large_bodies_cost_no_more_than_their_budget(
    long: bool, figure: Callable[[str], None]
) -> None:
    crowd, size = (500, 8_000_000) if long else (60, 1_000_000)
    limit_bytes = 8 * size
    settings = Settings(server=ServerSettings(bodies_limit_bytes=limit_bytes))
    request = post(CHAT, chat("x" * size))
    most_bytes = refusals = 0
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings) as bench:

            async def ask(client: Client) -> Answer:
                with contextlib.suppress(ConnectionError):  # refused, and not read any further
                    await client.send(request[:-1])
                loop = asyncio.get_running_loop()
                answer, go_on = loop.create_task(client.answer()), loop.create_task(half.wait())
                await asyncio.wait((answer, go_on), return_when=asyncio.FIRST_COMPLETED)
                go_on.cancel()
                if not answer.done():
                    await client.send(request[-1:])
                return await answer

            half = asyncio.Event()
            clients = [await bench.client() for _ in range(crowd)]
            async with asyncio.TaskGroup() as group:
                answers = [group.create_task(ask(client)) for client in clients]
                while not half.is_set():
                    exchanges = [one._exchange for one in bench.server.connections]
                    pieces = [one._pieces for one in exchanges if one is not None]
                    held_bytes = [0 if one is None else one.size_bytes for one in pieces]
                    most_bytes = max(most_bytes, sum(held_bytes))
                    refusals = sum(one.done() for one in answers)
                    if refusals + sum(held > 0.99 * size for held in held_bytes) == crowd:
                        half.set()
                    await asyncio.sleep(0.001)
            statuses = Counter(one.result().status for one in answers)
            assert statuses == {200: crowd - refusals, 503: refusals}
            assert 0 < most_bytes <= limit_bytes
            assert refusals >= crowd - 8
    figure(
        f"{crowd} bodies of {size // 10**6} MB at once: {refusals} refused before they were read, "
        f"at most {most_bytes / 1e6:.0f} MB held of {limit_bytes / 1e6:.0f}"
    )
