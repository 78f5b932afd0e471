"""Answers that mean nothing certain: 502, a connection never used again, nothing leaks through."""

import asyncio

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
from tokenlane.config.settings import Settings, UpstreamSettings
from tokenlane.telemetry.metrics import families

CANARY = b"Xq7canary"


def head(*lines: str, start: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join((start, *lines, "", "")).encode("latin-1")


GARBAGE = {
    "bytes": b"\x00\x16" + CANARY + b"\r\n\r\n",
    "html": b"<html>" + CANARY + b"</html>\r\n\r\n",
    "cl-te": head("content-length: 5", "transfer-encoding: chunked") + CANARY,
    "cl-twice": head("content-length: 5", "content-length: 6") + CANARY,
    "cl-list": head("content-length: 5, 5") + CANARY,
    "te-gzip": head("transfer-encoding: gzip, chunked") + CANARY,
    "status-999": head("content-length: 0", start="HTTP/1.1 999 X"),
    "status-099": head("content-length: 0", start="HTTP/1.1 099 X") + ok(CANARY),
    "switching": head("upgrade: x", "connection: upgrade", start="HTTP/1.1 101 X") + CANARY,
    "http-2": head("content-length: 0", start="HTTP/2.0 200 OK"),
    "nul": head("a: b\x00c", "content-length: 0"),
    "folded": head("a: b", " c", "content-length: 0"),
    "bare-lf": b"HTTP/1.1 200 OK\ncontent-length: 0\n\r\n\r\n",
    "huge-head": head("a: " + "b" * 70_000, "content-length: 0"),
    "interim-storm": head(start="HTTP/1.1 100 Continue") * 20 + ok(CANARY),
}


@pytest.mark.row("U3")
@pytest.mark.parametrize("answer_bytes", GARBAGE.values(), ids=GARBAGE)
async def test_garbage(answer_bytes: bytes) -> None:
    async with Upstream(answering(answer_bytes)) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for count in (1, 2):
            answer = await client.ask(post(CHAT, chat()))
            assert (answer.status, answer.whole) == (502, True)
            assert answer.error["code"] == "upstream_failed"
            assert CANARY not in answer.body
            assert len(upstream.peers) == count
        assert bench.metric(families.UPSTREAM_FAILURES, "demo", upstream.url[7:], "protocol") == 2


@pytest.mark.row("U3")
async def test_bytes_behind_a_body_are_no_answer() -> None:
    surplus = ok(CANARY)
    async with Upstream(answering(ok(b"mine") + surplus)) as upstream:
        async with gateway(upstream.url) as bench:
            client = await bench.client()
            for count in (1, 2):
                assert (await client.ask(post(CHAT, chat()))).body == b"mine"
                assert len(upstream.peers) == count


@pytest.mark.row("U3")
async def test_a_204_has_no_body() -> None:
    answer_bytes = head("content-length: 4", start="HTTP/1.1 204 No Content") + CANARY
    async with Upstream(answering(answer_bytes)) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(2):
            answer = await client.ask(post(CHAT, chat()))
            assert (answer.status, answer.body, answer.whole) == (204, b"", True)


@pytest.mark.row("U3")
@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_that_has_no_body_has_no_length(status: str, kind: str) -> None:
    """RFC 9110 8.6 forbids it; `content-length: 0` was added."""
    answer_bytes = head("content-length: 0", f"content-type: {kind}", start=f"HTTP/1.1 {status}")
    async with Upstream(answering(answer_bytes)) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(2):
            answer = await client.ask(post(CHAT, chat(stream=True)))
            assert (f"{answer.status}", answer.whole) == (status[:3], True)
            assert "content-length" not in answer.headers


@pytest.mark.row("H5")
@pytest.mark.parametrize("piece_bytes", [0, 1, 2, 7])
async def test_trailers_of_a_replica_are_dropped(piece_bytes: int) -> None:
    """They were passed on with the chunks, past all that is said of header fields."""
    framed = chunk(TOKEN) + chunk(DONE)

    async def script(peer: Peer) -> None:
        while True:
            try:
                await peer.asked()
            except EOFError:
                return
            await peer.send(STREAM_HEAD)
            trailers = b"x-secret: yes\r\nset-cookie: a=b\r\n\r\n"
            await peer.send(framed + b"0\r\n" + trailers, piece_bytes)

    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        for _ in range(2):
            await client.send(post(CHAT, chat(stream=True)))
            await client.through(b"\r\n\r\n")
            assert await client.exactly(len(framed) + 5) == framed + b"0\r\n\r\n"
        assert client.unread == b""
        assert len(upstream.peers) == 1


@pytest.mark.row("U3")
async def test_bad_chunks_after_a_token_break_the_answer() -> None:
    script = answering(STREAM_HEAD + chunk(ROLE) + chunk(TOKEN) + b"xyz\r\n" + CANARY)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert (answer.status, answer.whole) == (200, False)
        assert CANARY not in answer.body
        assert b"[DONE]" not in answer.body


ODD_EVENTS = [
    b"data: \xff\xfe not UTF-8\n\n",
    b'data: {"choices":[{"finish_reason":"\xff"}],"abort"\n\n',
    b'data: {"usage":{"prompt_tokens":"many"}}\n\n',
    b'data: {"usage": {\xff\n\n',
    b"data: {not json\n\n",
    b"event: x\nid: 7\nretry: 5\ndata: a\ndata: b\n\n",
    b": comment\n\n",
]


@pytest.mark.row("U5")
async def test_odd_events_pass_byte_for_byte() -> None:
    events = (ROLE, TOKEN, *ODD_EVENTS, USAGE, DONE)
    async with Upstream(answering(stream(*events))) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert (answer.whole, answer.body) == (True, b"".join(events))


@pytest.mark.row("U5")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"not json",
        b'{"choices":[{"finish_reason":"\xff"}]}',
        b'{"usage":{"prompt_tokens":"x"}}',
        b'{"choices":' + b"[" * 100_000,
    ],
    ids=range(6),
)
async def test_odd_bodies_pass_byte_for_byte(body: bytes) -> None:
    """One that was no UTF-8 used to hang its client."""
    framed = (chunk(body) if body else b"") + chunk(b"")
    chunked = head("transfer-encoding: chunked") + framed
    for answer_bytes in (ok(body), chunked):
        async with Upstream(answering(answer_bytes)) as upstream:
            async with gateway(upstream.url) as bench:
                answer = await bench.ask(post(CHAT, chat()))
                assert (answer.status, answer.whole, answer.body) == (200, True, body)


@pytest.mark.row("U5")
@pytest.mark.parametrize("count", [b"9" * 400, b"-50"], ids=["endless", "negative"])
async def test_a_request_is_counted_whatever_its_usage_says(count: bytes) -> None:
    """It was recorded in part, without a log line, or lowered what others had added."""
    usage = b'"usage":{"prompt_tokens":%b,"completion_tokens":%b}' % (count, count)
    events = (ROLE, TOKEN, TOKEN, b'data: {"choices":[],%b}\n\n' % usage, DONE)
    async with Upstream(answering(stream(*events))) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert (answer.whole, answer.body) == (True, b"".join(events))
        await until(lambda: not bench.gateway.in_hand)
        assert bench.outcomes() == {("200", "ok"): 1}
        assert bench.metric(families.PROMPT_TOKENS) == 0
        assert bench.metric(families.OUTPUT_TOKENS) == 2


SHORT = Settings(
    upstream=UpstreamSettings(first_byte_deadline_s=0.1, between_chunks_deadline_s=0.05)
)
SILENCES = {
    "nothing": (b"", 504, "upstream_timeout"),
    "interim": (head(start="HTTP/1.1 100 Continue"), 504, "upstream_timeout"),
    "half-a-head": (b"HTTP/1.1 200 OK\r\ncontent-", 504, "upstream_timeout"),
    "head": (head("content-length: 5"), 504, "upstream_timeout"),
    "half-a-body": (head("content-length: 5") + b"abc", 504, "upstream_timeout"),
}


@pytest.mark.row("T8")
@pytest.mark.parametrize(("start", "status", "code"), SILENCES.values(), ids=SILENCES)
async def test_a_silent_replica_is_a_504(start: bytes, status: int, code: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(start)
        await peer.gone()
        left.set()

    left = asyncio.Event()
    async with Upstream(script) as upstream, gateway(upstream.url, settings=SHORT) as bench:
        answer = await bench.ask(post(CHAT, chat()))
        assert (answer.status, answer.error["code"]) == (status, code)
        await asyncio.wait_for(left.wait(), 5)
        assert len(upstream.asked) == 1


@pytest.mark.row("T8")
@pytest.mark.parametrize("cut", [0, 5])
async def test_silence_within_a_stream(cut: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.asked()
        await peer.send(STREAM_HEAD + chunk(ROLE) + chunk(TOKEN + TOKEN[:cut]))
        await peer.gone()

    async with Upstream(script) as upstream, gateway(upstream.url, settings=SHORT) as bench:
        answer = await bench.ask(post(CHAT, chat(stream=True)))
        assert (answer.status, answer.whole) == (200, False)
        assert (b'"code":"upstream_failed"' in answer.body) == (cut == 0)
        assert (
            bench.metric(families.UPSTREAM_FAILURES, "demo", upstream.url[7:], "chunk_timeout") == 1
        )
