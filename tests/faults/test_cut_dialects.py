"""As test_cut_answers, in the other dialects: a cut stream never looks like a clean end, and what
the gateway says of it is what the dialect's clients raise."""

import json

import pytest

from tests.clients.scene import simulated
from tests.faults.test_cut_answers import FRAMINGS, NEVER_OUT, Dying, Ending
from tests.raw import Answer, Upstream, answering, json_bytes, ok, post, stream
from tests.relay.named_streams import ABORTED, BODIES, ERROR, PATHS, START, STOP, STREAMS
from tests.support import gateway
from tokenlane.protocols.dialects import Dialect, dialect_of
from tokenlane.simulator.faults import Fault

ASKED = {
    path: post(path, json_bytes({"model": "demo", "stream": True, **body}))
    for path, body in BODIES.items()
}
dialects = pytest.mark.parametrize("path", PATHS.values())


def events_of(path: str) -> tuple[bytes, ...]:
    return STREAMS[dialect_of(path)]


def check_refused(path: str, answer: Answer) -> None:
    """A failure before anything was relayed."""
    assert (answer.status, answer.whole) == (502, True)
    if dialect_of(path) is Dialect.MESSAGES:
        assert answer.refusal["type"] == "api_error"
    else:
        assert answer.error["code"] == "upstream_failed"


def check_broken(path: str, answer: Answer) -> None:
    """A stream that was begun and broke off."""
    assert (answer.status, answer.whole) == (200, False)
    payload = b"".join(events_of(path))
    relayed, mark, error = answer.body.partition(b"event: error\ndata: ")
    assert payload.startswith(relayed)
    if not mark:
        return
    assert relayed.endswith(b"\n\n") or not relayed
    told = json.loads(error)
    assert told["type"] == "error"
    if dialect_of(path) is Dialect.MESSAGES:
        assert set(told) == {"type", "error", "request_id"}
        assert told["error"]["type"] == "api_error"
    else:
        assert told["code"] == told["error"]["code"] == "upstream_failed"
        assert told["sequence_number"] == relayed.count(b"event: ")


@pytest.mark.row("U1")
@pytest.mark.slow
@dialects
async def test_every_cut_of_a_stream(path: str) -> None:
    dying = Dying(stream(*events_of(path)), "FIN")
    async with Upstream(dying) as upstream:
        async with gateway(upstream.url, settings=NEVER_OUT) as bench:
            told = 0
            for cut in range(len(dying.answer)):
                dying.cut = cut
                answer = await bench.ask(ASKED[path])
                if answer.status == 200:
                    check_broken(path, answer)
                    told += b"event: error" in answer.body
                else:
                    check_refused(path, answer)
            assert told >= len(events_of(path)) - 1


@pytest.mark.row("U1")
@dialects
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_end_without_its_event_is_a_break(path: str, framing: str) -> None:
    events = events_of(path)
    script = Ending(framing, events)
    async with Upstream(script) as upstream, gateway(upstream.url) as bench:
        for script.count in range(1, len(events) + 1):
            answer = await bench.ask(ASKED[path])
            if script.count == len(events):
                assert (answer.whole, answer.body) == (True, b"".join(events))
            else:
                check_broken(path, answer)
                assert b"event: error" in answer.body


NOTHING = {
    "abort": stream(START, ABORTED, STOP),
    "error": stream(START, ERROR),
    "whole": ok(b'{"type":"message","content":[],"usage":{"input_tokens":9,"output_tokens":0}}'),
    "busy": ok(b'{"type":"error","error":{"type":"x","message":"y"}}').replace(b"200 OK", b"503 X"),
}


@pytest.mark.row("U7")
@pytest.mark.parametrize("kind", NOTHING)
async def test_a_message_that_generated_nothing_is_asked_for_elsewhere(kind: str) -> None:
    good = stream(*STREAMS[Dialect.MESSAGES])
    async with Upstream(answering(NOTHING[kind])) as one, Upstream(answering(good)) as other:
        async with gateway(one.url, other.url) as bench:
            for _ in range(4):
                answer = await bench.ask(ASKED["/v1/messages"])
                assert (answer.status, answer.whole) == (200, True)
                assert answer.body.endswith(STOP)
        assert one.asked


async def test_a_failure_that_the_replica_tells_is_an_end() -> None:
    events = (*STREAMS[Dialect.MESSAGES][:4], ERROR)
    async with Upstream(answering(stream(*events))) as upstream, gateway(upstream.url) as bench:
        answer = await bench.ask(ASKED["/v1/messages"])
        assert (answer.whole, answer.body) == (True, b"".join(events))
        assert bench.outcomes() == {("200", "upstream_error"): 1}


@dialects
async def test_simulated_replicas_that_die(path: str) -> None:
    fault = Fault("die-mid-stream", after_chunks=2, count=1)
    async with simulated(1) as (_, bench, fleet):
        fleet.replicas[0].faults.set(fault)
        answer = await bench.ask(
            ASKED[path].replace(b"host:", b"content-type: application/json\r\nhost:")
        )
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.count(b".delta\n") + answer.body.count(b"_delta\n") == 2
        assert b"event: error" in answer.body
