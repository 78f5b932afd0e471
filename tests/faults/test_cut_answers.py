"""A replica dies within its answer, at every byte: it never looks like a clean end.

A relay that swallows the failure writes the last chunk itself, and the client takes half an answer
for the whole (openai-python raises nothing then).
"""

import contextlib
import json
from collections.abc import Callable

import pytest

from tests.raw import (
    CHAT,
    DONE,
    EVENTS,
    STREAM_HEAD,
    TOKEN,
    Answer,
    Peer,
    Upstream,
    chat,
    chunk,
    ok,
    post,
    stream,
)
from tests.support import Bench, gateway
from tokenlane.config.settings import HealthSettings, Settings
from tokenlane.telemetry.metrics import families

PAYLOAD = b"".join(EVENTS)
# Replicas that fail again and again are usually left out.
NEVER_OUT = Settings(health=HealthSettings(failure_limit_count=1_000_000))


class Dying:
    """A replica that sends so many bytes of an answer and dies."""

    def __init__(self, answer: bytes, how: str) -> None:
        self.answer = answer
        self.how = how
        self.cut = 0

    async def __call__(self, peer: Peer) -> None:
        await peer.asked()
        await peer.send(self.answer[: self.cut])
        peer.close() if self.how == "FIN" else peer.reset()


def check_stream(answer: Answer, answer_bytes: bytes, cut: int) -> None:
    if answer.status == 502:
        assert answer.whole
        assert answer.error["code"] == "upstream_failed"
        return
    assert answer.status == 200
    assert not answer.whole
    relayed, mark, error = answer.body.partition(b'data: {"error"')
    assert PAYLOAD.startswith(relayed)
    if mark:
        # Glued to half an event it would be bad JSON.
        assert relayed.endswith(b"\n\n") or not relayed
        [event, rest] = (mark + error).split(b"\n\n")
        assert json.loads(event[6:])["error"]["code"] == "upstream_failed"
        assert rest == b""
    assert (DONE in relayed) == (DONE in answer_bytes[:cut])
    # Everything that came whole was passed on.
    came = answer_bytes[:cut].partition(b"\r\n\r\n")[2]
    assert sum(event in relayed for event in EVENTS) == sum(event in came for event in EVENTS)


async def ask_at_every_cut(bench: Bench, dying: Dying) -> list[Answer]:
    answers = []
    request = post(CHAT, chat(stream=True))
    for cut in range(len(dying.answer)):
        dying.cut = cut
        answers.append(await bench.ask(request))
    return answers


@pytest.mark.row("U1")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_every_cut_of_a_stream(how: str, replicas: int) -> None:
    dying = Dying(stream(), how)
    one, other = Upstream(dying), Upstream(dying)
    urls = [one.url, other.url][:replicas]
    async with one, other, gateway(*urls, settings=NEVER_OUT) as bench:
        answers = await ask_at_every_cut(bench, dying)
        for cut, answer in enumerate(answers):
            check_stream(answer, dying.answer, cut)
        # A request that was sent is never sent again.
        assert len(one.asked) + len(other.asked) == len(dying.answer)
        failed = sum(answer.status == 502 for answer in answers)
        assert bench.outcomes() == {
            ("502", "upstream_error"): failed,
            ("200", "truncated"): len(answers) - failed,
        }
    # Some cuts are in the middle of an event, some between two.
    ends = [b'data: {"error"' in answer.body for answer in answers]
    assert True in ends
    assert False in ends
    # With another candidate nothing is relayed before the first token; alone, the head is.
    first = STREAM_HEAD if replicas == 1 else stream()[: stream().index(TOKEN) + len(TOKEN)]
    assert failed == len(first)


OPEN_ENDED = STREAM_HEAD.replace(b"transfer-encoding: chunked", b"connection: close")
FRAMINGS: dict[str, Callable[..., bytes]] = {
    "one-chunk-each": stream,
    "one-chunk": lambda *events: stream(b"".join(events)),
    "last-chunk-apart": lambda *events: stream(*events)[:-5],
    "trailers": lambda *events: stream(*events)[:-5] + b"0;a=b\r\nx: y\r\n\r\n",
    "open-ended": lambda *events: OPEN_ENDED + b"".join(events),
}


class Ending:
    """A replica that ends its stream early with the best of manners, as what stands before it may.
    count: events before the end."""

    def __init__(self, framing: str, events: tuple[bytes, ...] = EVENTS) -> None:
        self.framing = framing
        self.events = events
        self.count = 0

    async def __call__(self, peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await peer.send(FRAMINGS[self.framing](*self.events[: self.count]))
                if self.framing == "last-chunk-apart":
                    await peer.send(chunk(b""))
                if self.framing == "open-ended":
                    peer.close()
                    return


@pytest.mark.row("U1")
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_an_end_without_its_marker_is_a_break(framing: str, replicas: int) -> None:
    script = Ending(framing)
    one, other = Upstream(script), Upstream(script)
    async with one, other, gateway(*[one.url, other.url][:replicas]) as bench:
        for script.count in range(1, len(EVENTS) + 1):
            answer = await bench.ask(post(CHAT, chat(stream=True)))
            relayed = b"".join(EVENTS[: script.count])
            if script.count == len(EVENTS):
                assert (answer.whole, answer.body) == (True, relayed)
            elif replicas == 2 and script.count == 1:  # nothing was relayed yet
                assert (answer.status, answer.whole) == (502, True)
            else:
                assert (answer.status, answer.whole) == (200, False)
                assert answer.body.startswith(relayed + b'data: {"error":')
                assert answer.body.endswith(b"}\n\n")
        assert len(one.asked) + len(other.asked) == len(EVENTS)


@pytest.mark.row("U1")
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_nor_is_it_an_end_to_an_http_1_0_client(framing: str) -> None:
    script = Ending(framing)
    body = chat(stream=True)
    request = f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        for script.count in range(1, len(EVENTS) + 1):
            client = await bench.client()
            await client.send(request)
            whole = script.count == len(EVENTS)
            with pytest.raises(EOFError if whole else ConnectionResetError):
                await client.exactly(1_000_000)


@pytest.mark.row("U2")
@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_every_cut_of_a_whole_answer(how: str) -> None:
    dying = Dying(ok(b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}'), how)
    async with Upstream(dying) as upstream, gateway(upstream.url) as bench:
        for answer in await ask_at_every_cut(bench, dying):
            assert (answer.status, answer.whole) == (502, True)
            assert answer.error["code"] == "upstream_failed"
        assert len(upstream.asked) == len(dying.answer)
        assert bench.metric(families.UPSTREAM_FAILURES, "demo", upstream.url[7:], "truncated") > 0


@pytest.mark.row("U2")
@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_a_cut_long_answer(how: str, framing: str) -> None:
    """Too long to hold back: the client has its head, and sees that it is not whole."""
    body = b"x" * 200_000
    if framing == "length":
        dying = Dying(ok(body), how)
    else:
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        dying = Dying(head + chunk(body[:90_000]) + chunk(body[90_000:]) + chunk(b""), how)
    async with Upstream(dying) as upstream, gateway(upstream.url) as bench:
        for cut in (90_000, len(dying.answer) - 6, len(dying.answer) - 1):
            dying.cut = cut
            answer = await bench.ask(post(CHAT, chat()))
            assert (answer.status, answer.whole) == (200, False)
            assert body.startswith(answer.body)


async def test_an_http_1_0_client_sees_a_reset() -> None:
    """Without chunks only a reset tells a break from an end."""
    dying = Dying(stream(), "FIN")
    dying.cut = stream().index(DONE)
    async with Upstream(dying) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        body = chat(stream=True)
        head = f"POST {CHAT} HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n"
        await client.send(head.encode() + body)
        with pytest.raises(ConnectionResetError):
            await client.exactly(1_000_000)


async def test_the_connection_of_a_broken_answer_is_not_used_again() -> None:
    dying = Dying(stream(), "FIN")
    dying.cut = len(STREAM_HEAD) + 20
    async with Upstream(dying) as upstream, gateway(upstream.url) as bench:
        client = await bench.client()
        assert not (await client.ask(post(CHAT, chat(stream=True)))).whole
        assert await client.rest() == b""
        dying.cut = len(dying.answer)
        assert (await bench.ask(post(CHAT, chat(stream=True)))).whole
