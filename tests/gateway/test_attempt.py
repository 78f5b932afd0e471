"""What an attempt says of itself, and what is booked for it."""

import contextlib
import socket
import time

import pytest

from tests.raw import CHAT, Peer, Upstream, answering, chat, ok, post, stream
from tests.routing.test_router import Bench
from tests.support import gateway
from tokenlane.gateway.attempt import AnswerHeaders
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.telemetry.metrics import families

# Nothing was generated, so that another replica may do it.
ABORTED = ok(
    b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":""},'
    b'"finish_reason":"abort"}],"usage":{"prompt_tokens":1000,"completion_tokens":0}}'
)

# Its head comes before its body, as whole answers often do.
IN_CHUNKS = stream(b"{}").replace(b"text/event-stream", b"application/json")


def test_the_lines_of_replicas_that_are_gone_are_dropped() -> None:
    bench, headers = Bench(1), AnswerHeaders()
    decision = bench.decide(bench.query(1, 100))
    for number in range(10_000):
        name = b"10.0.%d.%d:8000" % divmod(number, 250)
        lines = headers.of(name, decision, "ids")
        assert lines.startswith(b"x-tokenlane-replica: %b\r\n" % name)
        assert headers.of(name, decision, "ids") == lines
    assert len(headers._known) <= 5_000


@pytest.mark.parametrize(
    ("answer", "learned"),
    [
        (stream(), True),
        (IN_CHUNKS, False),
        (IN_CHUNKS.replace(b"200 OK", b"400 Bad Request"), False),
        (IN_CHUNKS.replace(b"200 OK", b"500 Internal Server Error"), False),
    ],
    ids=["stream", "whole", "400", "500"],
)
async def test_only_streams_tell_how_fast_a_replica_prefills(answer: bytes, learned: bool) -> None:
    async with Upstream(answering(answer)) as upstream, gateway(upstream.url) as bench:
        await bench.ask(post(CHAT, chat("words " * 20_000, stream=learned)))
        assert (bench.gateway.router.progress.rate(0) > 0) == learned


async def test_a_lost_attempt_is_not_charged_to_routing() -> None:
    asked_s: list[float] = []

    async def busy_once(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                asked_s.append(time.monotonic())
                records.update(bench.gateway.in_hand)
                await peer.send(ok() if asked_s[1:] else ok().replace(b"200 OK", b"503 Busy"))

    records: dict[RequestRecord, bytes] = {}
    async with Upstream(busy_once) as one, Upstream(busy_once) as other:
        async with gateway(one.url, other.url) as bench:
            assert (await bench.ask(post(CHAT, chat()))).status == 200
    [record], [first_s, _] = records, asked_s
    began, ended = (
        record.started_s + sum(record.stages()[:count])
        for count in map(families.STAGES.index, ("attempt", "first_byte"))
    )
    assert began <= first_s <= ended


async def test_a_replica_that_got_nothing_is_booked_nothing() -> None:
    second = 0
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        while second < 2:  # which of them is asked first is drawn
            async with Upstream(answering(ABORTED)) as upstream:
                async with gateway(upstream.url, f"http://{dead}") as bench:
                    assert (await bench.ask(post(CHAT, chat()))).status in (200, 503)
                    second += bench.metric(families.RETRIES) > 0
                    assert bench.metric(families.PROMPT_TOKENS, "demo", dead) == 0
