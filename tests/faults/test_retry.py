"""Another replica is tried only while it is certain that none has worked on the request, or that
the one that did says so.

Every test counts what the replicas were asked: a prompt that runs twice costs twice.
"""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from tests.raw import (
    ABORTED,
    CHAT,
    DONE,
    EVENTS,
    RESPONSES,
    ROLE,
    TOKEN,
    Answer,
    Peer,
    Script,
    Upstream,
    answering,
    chat,
    chunk,
    json_bytes,
    ok,
    post,
    stream,
    until,
)
from tests.relay import named_streams
from tests.support import gateway, replicas
from tokenlane.config.settings import Settings, UpstreamSettings
from tokenlane.fleet_state import FleetState
from tokenlane.telemetry.metrics import families

BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b'retry-after: 7\r\ncontent-length: 8\r\n\r\n{"no":1}'
)
GOOD = ok(b'{"choices":[{"finish_reason":"stop"}]}')
ABORT = ok(b'{"choices":[{"finish_reason":"abort"}],"usage":{"completion_tokens":0}}')
ABORT_STREAM = stream(ROLE, ABORTED, DONE)


class Nobody:
    """Ports that refuse connections."""

    def __init__(self, count: int = 1) -> None:
        self.socks = [socket.socket() for _ in range(count)]
        for sock in self.socks:
            sock.bind(("127.0.0.1", 0))
        self.urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in self.socks]

    def __enter__(self) -> list[str]:
        return self.urls

    def __exit__(self, *_: object) -> None:
        for sock in self.socks:
            sock.close()


class Once:
    """The first request that any replica with this script gets meets `first`, others the rest."""

    def __init__(self, first: bytes | None, then: bytes) -> None:
        self.answers = [first, then]
        self.asked = 0

    async def __call__(self, peer: Peer) -> None:
        while True:
            try:
                await peer.asked()
            except EOFError:
                return
            self.asked += 1
            answer = self.answers[min(self.asked, 2) - 1]
            if answer is None:
                peer.close()
                return
            await peer.send(answer)


async def ask(
    script: Script, body: bytes, count: int = 2, path: str = CHAT, **settings: Any
) -> Answer:
    """One request to a gateway in front of so many replicas with this script."""
    upstreams = [Upstream(script) for _ in range(count)]
    upstream_settings = msgspec.structs.replace(UpstreamSettings(), **settings)
    for upstream in upstreams:
        await upstream.__aenter__()
    try:
        urls = [upstream.url for upstream in upstreams]
        async with gateway(*urls, settings=Settings(upstream=upstream_settings)) as bench:
            return await bench.ask(post(path, body))
    finally:
        for upstream in upstreams:
            await upstream.__aexit__(None, None, None)


@pytest.mark.row("U7")
async def test_a_refused_connection_goes_to_the_next() -> None:
    suspects: list[int] = []
    with Nobody() as urls:
        async with Upstream(answering(GOOD)) as upstream, gateway(*urls, upstream.url) as bench:
            bench.gateway._attempts._on_suspect = suspects.append
            for _ in range(4):
                answer = await bench.ask(post(CHAT, chat()))
                assert answer.status == 200
                assert answer.headers["x-tokenlane-replica"] == upstream.url[7:]
            assert len(upstream.asked) == 4
            # LeftOut out for a while after its first refusal.
            assert bench.metric(families.UPSTREAM_FAILURES, "demo", urls[0][7:], "refused") <= 1
            assert suspects in ([], [0])


@pytest.mark.parametrize(
    ("refusing", "attempts", "should_retry"), [(1, 1, None), (2, 2, "false"), (5, 3, "false")]
)
async def test_nobody_listens(refusing: int, attempts: int, should_retry: str | None) -> None:
    with Nobody(refusing) as urls:
        async with gateway(*urls) as bench:
            answer = await bench.ask(post(CHAT, chat()))
            assert (answer.status, answer.error["code"]) == (503, "upstream_unreachable")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers.get("x-should-retry") == should_retry
            refused = [
                bench.metric(families.UPSTREAM_FAILURES, "demo", url[7:], "refused") for url in urls
            ]
            assert sum(refused) == attempts


@pytest.mark.row("T8")
async def test_a_connect_timeout_goes_to_the_next() -> None:
    settings = Settings(upstream=UpstreamSettings(connect_deadline_s=0.05))
    with socket.socket() as full, socket.socket() as filler:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filler.connect(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with Upstream(answering(GOOD)) as upstream:
            async with gateway(url, settings=settings) as bench:
                answer = await bench.ask(post(CHAT, chat()))
                assert (answer.status, answer.error["code"]) == (503, "upstream_unreachable")
                bench.gateway.update(replicas([url, upstream.url]))
                for _ in range(3):
                    assert (await bench.ask(post(CHAT, chat()))).status == 200


@pytest.mark.row("U7")
@pytest.mark.parametrize(
    ("first", "then", "body"),
    [
        (BUSY, GOOD, chat()),
        (BUSY, stream(), chat(stream=True)),
        (ABORT, GOOD, chat()),
        (ABORT_STREAM, stream(), chat(stream=True)),
    ],
    ids=["busy", "busy-stream", "abort", "abort-stream"],
)
async def test_an_answer_that_generated_nothing_is_replaced_once(
    first: bytes, then: bytes, body: bytes
) -> None:
    script = Once(first, then)
    answer = await ask(script, body)
    assert script.asked == 2
    assert (answer.status, answer.whole) == (200, True)
    assert "x-should-retry" not in answer.headers
    assert b"abort" not in answer.body


@pytest.mark.parametrize(
    ("nothing", "body"),
    [(BUSY, chat()), (ABORT, chat()), (ABORT_STREAM, chat(stream=True))],
    ids=["busy", "abort", "abort-stream"],
)
async def test_then_the_client_gets_the_replicas_own_answer(nothing: bytes, body: bytes) -> None:
    for count, asked, should_retry in ((1, 1, None), (2, 2, "false"), (4, 2, "false")):
        script = Once(nothing, nothing)
        answer = await ask(script, body, count)
        assert script.asked == asked
        assert answer.whole
        if nothing is BUSY:
            assert (answer.status, answer.body) == (503, b'{"no":1}')
            assert answer.headers["retry-after"] == "7"
            assert answer.headers.get("x-should-retry") == should_retry
        elif nothing is ABORT:
            assert answer.json["choices"][0]["finish_reason"] == "abort"
            assert answer.headers.get("x-should-retry") == should_retry
        else:
            assert answer.body == ROLE + ABORTED + DONE


async def test_an_abort_after_a_token_is_the_answer() -> None:
    events = (ROLE, TOKEN, ABORTED, DONE)
    for answer_bytes in (stream(*events), stream(b"".join(events))):
        script = Once(answer_bytes, stream())
        answer = await ask(script, chat(stream=True))
        assert (answer.body, answer.whole, script.asked) == (b"".join(events), True, 1)


ABORTED_WORD = b'data: {"choices":[{"delta":{"content":"word"},"finish_reason":"abort"}]}\n\n'
ABORTED_TEXT = b'data: {"choices":[{"text":"word","finish_reason":"abort"}]}\n\n'
ABORTED_CALL = (
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"abort"}]}\n\n'
)
UNCOUNTED = b'{"choices":[{"message":{"content":"word"},"finish_reason":"abort"}]}'


@pytest.mark.row("U7")
@pytest.mark.parametrize(
    "events",
    [(ROLE, ABORTED_WORD), (ABORTED_TEXT,), (ROLE, ABORTED_CALL), (ROLE, ABORTED, TOKEN)],
    ids=["with-a-word", "with-text", "with-a-call", "of-one-choice-of-two"],
)
async def test_an_abort_that_says_something_is_the_answer(events: tuple[bytes, ...]) -> None:
    """The engine has worked on the prompt: another would do so again."""
    for answer_bytes in (stream(*events, DONE), stream(b"".join((*events, DONE)))):
        script = Once(answer_bytes, stream())
        answer = await ask(script, chat(stream=True))
        assert (answer.body, script.asked) == (b"".join((*events, DONE)), 1)


def made(status: str) -> bytes:
    """A response of two events, without usage."""
    created = named_streams.event("response.created", response={"status": "in_progress"})
    return created + named_streams.event("response.completed", response={"status": status})


@pytest.mark.row("U7")
@pytest.mark.parametrize(
    ("path", "events", "asked"),
    [
        (CHAT, ROLE.replace(b'""}', b'""},"finish_reason":"length"') + DONE, 1),
        (RESPONSES, made("completed"), 1),
        (RESPONSES, made("cancelled"), 2),  # so vLLM calls what it aborts
    ],
    ids=["chat", "response", "aborted-response"],
)
async def test_a_stream_that_is_nothing_but_an_end_is_whole(
    path: str, events: bytes, asked: int
) -> None:
    """Not all servers report usage, nor all they generate as text."""
    script = Once(stream(events), stream(made("completed")))
    body = json_bytes({"model": "demo", "stream": True, "input": "x", "messages": []})
    answer = await ask(script, body, path=path)
    assert script.asked == asked
    assert answer.body == (events if asked == 1 else made("completed"))


@pytest.mark.row("U7")
async def test_a_whole_abort_that_counts_no_tokens_may_have_some() -> None:
    script = Once(ok(UNCOUNTED), GOOD)
    assert (await ask(script, chat())).body == UNCOUNTED
    assert script.asked == 1


async def test_a_streamed_error_after_a_token_is_passed() -> None:
    error = b'data: {"error":{"message":"EngineDead","code":500}}\n\n'
    script = Once(stream(ROLE, TOKEN, error, DONE), stream())
    answer = await ask(script, chat(stream=True))
    assert answer.body == ROLE + TOKEN + error + DONE
    assert script.asked == 1


@pytest.mark.row("U7")
@pytest.mark.parametrize(("code", "asked"), [(400, 1), (422, 1), (429, 1), (501, 1), (500, 2)])
async def test_a_streamed_error_is_judged_by_its_code(code: int, asked: int) -> None:
    """As a whole answer is by its status: who asked wrongly is not answered better elsewhere."""
    error = b'data: {"error":{"message":"mine","code":%d}}\n\n' % code
    script = Once(stream(error, DONE), stream())
    answer = await ask(script, chat(stream=True))
    assert (answer.whole, script.asked) == (True, asked)
    assert answer.body == (error + DONE if asked == 1 else b"".join(EVENTS))


@pytest.mark.parametrize("status", [400, 404, 429, 500, 502])
async def test_other_answers_are_passed_as_they_are(status: int) -> None:
    body = b'{"error":{"message":"mine"}}'
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nx-a: b\r\n\r\n"
    script = Once(head.encode() + body, GOOD)
    answer = await ask(script, chat())
    assert (answer.status, answer.body, script.asked) == (status, body, 1)
    assert answer.headers["x-a"] == "b"


@pytest.mark.row("U7")
@pytest.mark.parametrize("stream_asked", [False, True])
async def test_a_request_that_was_sent_is_not_sent_again(stream_asked: bool) -> None:
    """A peer that closed may have run it."""
    script = Once(None, GOOD)
    answer = await ask(script, chat(stream=stream_asked))
    assert (answer.status, answer.error["code"]) == (502, "upstream_failed")
    assert script.asked == 1


async def test_unless_the_operator_prefers_two_executions() -> None:
    script = Once(None, GOOD)
    answer = await ask(script, chat(), retry_unanswered=True)
    assert (answer.status, script.asked) == (200, 2)


@pytest.mark.row("U7")
async def test_nothing_follows_a_relayed_byte() -> None:
    asked = 0

    async def script(peer: Peer) -> None:
        nonlocal asked
        await peer.asked()
        asked += 1
        await peer.send(stream()[:-5])
        peer.close()

    answer = await ask(script, chat(stream=True), retry_unanswered=True)
    assert (answer.status, answer.whole, asked) == (200, False, 1)


async def test_a_replica_that_left_meanwhile_is_not_asked() -> None:
    """The second candidate went with a snapshot while the first was being asked."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        asked.set()
        await go_on.wait()
        await peer.send(BUSY)

    async with Upstream(script) as one, Upstream(script) as other:
        async with gateway(one.url, other.url) as bench:
            client = await bench.client()
            await client.send(post(CHAT, chat()))
            await asked.wait()
            gone = 1 if one.asked else 0
            state = replicas([one.url, other.url])
            left = tuple(replica for replica in state.replicas if replica.slot != gone)
            bench.gateway.update(FleetState(2, left))
            go_on.set()
            answer = await client.answer()
            assert (answer.status, answer.error["type"]) == (503, "server_error")
            assert len(one.asked) + len(other.asked) == 1


async def test_a_stream_is_held_until_its_first_token_only() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.asked()
        whole = stream()
        start = whole.index(chunk(TOKEN))
        await peer.send(whole[:start])
        await go_on.wait()
        await peer.send(whole[start : start + len(chunk(TOKEN))])
        await peer.gone()

    async with Upstream(script) as one, Upstream(script) as other:
        async with gateway(one.url, other.url) as bench:
            client = await bench.client()
            await client.send(post(CHAT, chat(stream=True)))
            await until(lambda: one.asked or other.asked)
            await asyncio.sleep(0.01)
            assert not client.unread
            go_on.set()
            await client.through(b"word")
            client.close()


@pytest.mark.row("U7")
async def test_a_body_is_replayed_byte_for_byte() -> None:
    body = chat("é" * 50_000, unknown={"a": [1.0, 1e5]})
    script = Once(BUSY, GOOD)
    async with Upstream(script) as one, Upstream(script) as other:
        async with gateway(one.url, other.url) as bench:
            await bench.ask(post(CHAT, body, "x-mine: 1\r\n"))
        assert one.asked[0].body == other.asked[0].body == body
        assert one.asked[0].line == other.asked[0].line
        differing = set(one.asked[0].headers) ^ set(other.asked[0].headers)
        assert {name for name, _ in differing} == {b"host"}


async def test_events_pass_in_order_when_they_were_held() -> None:
    answer = await ask(Once(stream(*EVENTS[:2], b"".join(EVENTS[2:])), stream()), chat(stream=True))
    assert answer.body == b"".join(EVENTS)
