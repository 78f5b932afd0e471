"""Replicas that look healthy to every probe and fail their requests: they are left out, tried again
after a while, and blamed only for what they did."""

import asyncio
import contextlib

import pytest

from tests.raw import (
    ABORTED,
    CHAT,
    DONE,
    EVENTS,
    MESSAGES,
    ROLE,
    STREAM_HEAD,
    TOKEN,
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
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.config.settings import HealthSettings, ServerSettings, Settings, UpstreamSettings
from tokenlane.telemetry.metrics import families

QUICK = Settings(
    upstream=UpstreamSettings(first_byte_deadline_s=0.05, between_chunks_deadline_s=0.05),
    health=HealthSettings(failure_limit_count=3, ejection_s=3600.0),
)
SICK = b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\n{}"
REFUSAL = b'data: {"error":{"message":"Invalid grammar.","type":"BadRequestError","code":400}}\n\n'
REFUSED = b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error"}}\n\n'
ERROR = b'data: {"error":{"message":"EngineDeadError","code":500}}\n\n'
WAYS = {
    "status-500": SICK,
    "garbage": b"garbage\r\n\r\n",
    "silence": b"",
    "stall": STREAM_HEAD + chunk(ROLE) + chunk(TOKEN),
    "error-event": stream(ROLE, TOKEN, ERROR, DONE),
    "abort-after-tokens": stream(ROLE, TOKEN, ABORTED, DONE),
    "cut": stream(*EVENTS[:3]),
}


async def statuses(bench: Bench, count: int, body: bytes) -> list[int]:
    """Of so many requests, one after the other."""
    return [(await bench.ask(post(CHAT, body))).status for _ in range(count)]


@pytest.mark.row("U8", "U9")
@pytest.mark.parametrize("how", WAYS)
async def test_one_that_fails_its_requests_is_left_out(how: str) -> None:
    sick, well = Upstream(answering(WAYS[how])), Upstream(answering(stream()))
    async with sick, well, gateway(sick.url, well.url, settings=QUICK) as bench:
        await statuses(bench, 20, chat(stream=True))
        # It was found out after three, and had no request since.
        assert len(sick.asked) == 3
        assert bench.metric(families.EJECTIONS, sick.url[7:]) == 1
        assert bench.metric(families.EJECTIONS, well.url[7:]) == 0
        assert await statuses(bench, 5, chat(stream=True)) == [200] * 5


@pytest.mark.row("U9")
async def test_its_prefixes_are_not_followed() -> None:
    """The replica that holds the whole conversation would win every decision."""
    sick: list[Upstream] = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await peer.send(WAYS["error-event"] if peer.upstream in sick else stream())

    body = chat("a long conversation " * 200, stream=True)
    one, other = Upstream(script), Upstream(script)
    tokenizer = demo_tokenizer()
    urls = one.url, other.url
    async with one, other, gateway(*urls, settings=QUICK, tokenizer=tokenizer) as bench:
        await statuses(bench, 2, body)
        home, away = (one, other) if one.asked else (other, one)
        assert not away.asked
        sick.append(home)
        await statuses(bench, 3, body)
        assert not away.asked
        await statuses(bench, 3, body)
        assert len(away.asked) == 3


@pytest.mark.row("U8", "U9")
async def test_one_that_drains_behind_a_healthy_probe() -> None:
    """vLLM's shutdown: `/health` stays 200, every request ends with `abort`."""
    leaving = Upstream(answering(stream(ROLE, ABORTED, DONE)))
    staying = Upstream(answering(stream()))
    async with leaving, staying, gateway(leaving.url, staying.url) as bench:
        answers = [await bench.ask(post(CHAT, chat(stream=True))) for _ in range(10)]
        assert all(answer.body == b"".join(EVENTS) for answer in answers)
        # LeftOut out at its first word; nobody's request was lost.
        assert len(leaving.asked) == 1


@pytest.mark.row("U8", "T5")
async def test_clients_are_not_the_replicas_fault() -> None:
    """Refused requests and clients that leave strike nobody. vLLM's 501: the request asks for a
    feature that it lacks."""
    for status in (400, 501, 505):
        refused = b"HTTP/1.1 %d No\r\ncontent-length: 2\r\n\r\n{}" % status
        async with Upstream(answering(refused)) as upstream:
            async with gateway(upstream.url, settings=QUICK) as bench:
                assert await statuses(bench, 9, chat()) == [status] * 9
                assert not bench.gateway.router.health.troubled

    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(ROLE) + chunk(TOKEN))
        await peer.gone()

    settings = Settings(
        server=ServerSettings(), health=HealthSettings(failure_limit_count=1, ejection_s=3600.0)
    )
    async with Upstream(script) as upstream, gateway(upstream.url, settings=settings) as bench:
        for leave in ("close", "reset"):
            client = await bench.client()
            await client.send(post(CHAT, chat(stream=True)))
            await client.through(b"word")
            getattr(client, leave)()
        await until(lambda: bench.outcomes() == {("200", "client_gone"): 2})
        assert not bench.gateway.router.health.troubled


@pytest.mark.row("U8")
@pytest.mark.parametrize(
    ("path", "events"),
    [(CHAT, (REFUSAL, DONE)), (CHAT, (ROLE, REFUSAL, DONE)), (MESSAGES, (REFUSED,))],
    ids=["chat", "chat-begun", "messages"],
)
async def test_nor_is_what_a_stream_says_of_a_client(path: str, events: tuple[bytes, ...]) -> None:
    """vLLM finds some mistakes once its head is sent."""
    one, other = (Upstream(answering(stream(*events))) for _ in range(2))
    async with one, other, gateway(one.url, other.url, settings=QUICK) as bench:
        for _ in range(9):
            answer = await bench.ask(post(path, chat(stream=True, max_tokens=9)))
            assert (answer.whole, answer.body) == (True, b"".join(events))
        assert len(one.asked) + len(other.asked) == 9
        assert not bench.gateway.router.health.troubled
        assert not bench.gateway.router.left_out(asyncio.get_running_loop().time())
        assert bench.outcomes() == {("200", "client_error"): 9}


@pytest.mark.row("U8")
async def test_where_all_are_sick_all_are_asked() -> None:
    one, other = Upstream(answering(SICK)), Upstream(answering(SICK))
    async with one, other, gateway(one.url, other.url, settings=QUICK) as bench:
        assert await statuses(bench, 20, chat()) == [500] * 20
        assert len(one.asked) + len(other.asked) == 20


@pytest.mark.row("U8")
async def test_one_that_is_well_again_comes_back() -> None:
    replies = [SICK] * 3

    async def script(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await peer.send(replies.pop() if replies else ok())

    health = HealthSettings(failure_limit_count=3, ejection_s=0.05, slow_start_s=0.05)
    async with Upstream(script) as one, Upstream(answering(ok())) as other:
        async with gateway(one.url, other.url, settings=Settings(health=health)) as bench:
            async with asyncio.timeout(20):
                while len(one.asked) < 20:
                    await statuses(bench, 1, chat())
                    await asyncio.sleep(0.005)
            assert bench.metric(families.EJECTIONS, one.url[7:]) == 1


@pytest.mark.row("U8")
@pytest.mark.parametrize("refuses", [True, False])
async def test_one_that_starts_slowly_is_there_to_be_tried_next(refuses: bool) -> None:
    busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"
    settings = Settings(health=HealthSettings(slow_start_s=3600.0))
    async with Upstream(answering(busy)) as failing, Upstream(answering(ok())) as well:
        url = "http://127.0.0.1:1" if refuses else failing.url
        async with gateway(url, well.url, settings=settings) as bench:
            bench.gateway.router.health.rise(1)
            assert await statuses(bench, 20, chat()) == [200] * 20
            assert len(well.asked) == 20


@pytest.mark.row("U7")
async def test_trying_again_has_a_budget() -> None:
    """When every replica says 503, the load is not doubled."""
    busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"
    settings = Settings(
        upstream=UpstreamSettings(retry_budget_ratio=0.1, retry_budget_burst_count=5),
        health=HealthSettings(failure_limit_count=1_000_000),
    )
    one, other = Upstream(answering(busy)), Upstream(answering(busy))
    async with one, other, gateway(one.url, other.url, settings=settings) as bench:
        assert await statuses(bench, 100, chat()) == [503] * 100
        asked = len(one.asked) + len(other.asked)
        assert 110 <= asked <= 100 + 5 + 10
        assert bench.metric(families.RETRIES, "busy") == asked - 100
        assert bench.metric(families.RETRIES_DENIED) == 200 - asked
