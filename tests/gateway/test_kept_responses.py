"""Requests that go on from a response which one replica keeps: they reach that replica."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.raw import (
    MESSAGES,
    RESPONSES,
    Answer,
    Upstream,
    answering,
    chat,
    chunk,
    json_bytes,
    ok,
    post,
)
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.telemetry.metrics import families

HEAD = "content-type: application/json\r\n"


@asynccontextmanager
async def serving(count: int, *, keep: bool = True) -> AsyncIterator[Bench]:
    settings = SimulatorSettings(store_responses=keep)
    async with SimulatedFleet(settings, tokenizer=demo_tokenizer()) as fleet:
        urls = await fleet.start(count)
        async with gateway(*urls, tokenizer=demo_tokenizer()) as bench:
            yield bench


async def respond(bench: Bench, text: str, **fields: Any) -> Answer:
    body = {"model": "demo", "input": text, "max_output_tokens": 2, **fields}
    return await bench.ask(post(RESPONSES, json_bytes(body), HEAD))


def name_of(answer: Answer) -> str:
    assert answer.status == 200
    return str(answer.json["id"])


async def test_a_conversation_stays_where_it_is_kept() -> None:
    async with serving(4) as bench:
        for text in ("one", "two", "three"):
            answer = await respond(bench, text)
            home, tokens = answer.headers["x-tokenlane-replica"], 0
            for turn in range(3):
                answer = await respond(bench, f"go on {turn}", previous_response_id=name_of(answer))
                assert answer.headers["x-tokenlane-replica"] == home
                used = answer.json["usage"]["input_tokens"]
                assert used > tokens  # all that came before is in the prompt
                tokens = used
        assert bench.outcomes() == {("200", "ok"): 12}


async def test_a_response_that_is_not_to_be_stored_is_not_remembered() -> None:
    async with serving(1) as bench:
        for store, known in ((True, True), (None, True), ("false", False), (False, False)):
            made = await respond(bench, "one", store=store)
            assert bench.gateway.kept.homes.owns(name_of(made), "") == known
        assert bench.metric(families.RETRIES_DENIED) == 0


async def test_a_stream_too() -> None:
    async with serving(3) as bench:
        answer = await respond(bench, "one")
        for _ in range(3):
            streamed = await respond(
                bench, "go on", previous_response_id=name_of(answer), stream=True
            )
            assert streamed.headers["x-tokenlane-replica"] == answer.headers["x-tokenlane-replica"]
            assert b"response.incomplete" in streamed.body or b"response.completed" in streamed.body


@pytest.mark.parametrize("count", [1, 3])
async def test_what_nobody_keeps_is_the_replicas_own_404(count: int) -> None:
    async with serving(count, keep=False) as bench:
        answer = await respond(bench, "one")
        answer = await respond(bench, "go on", previous_response_id=name_of(answer))
        assert answer.status == 404
        assert "not found" in answer.error["message"]
        assert bench.metric(families.RETRIES, "elsewhere") == count - 1
        # A replica that keeps nothing is not ill.
        assert bench.metric(families.UPSTREAM_FAILURES) == 0
        assert bench.outcomes() == {("200", "ok"): 1, ("404", "client_error"): 1}


async def test_any_other_404_is_final() -> None:
    refused = ok(b'{"error":{}}').replace(b"200 OK", b"404 Not Found")
    async with Upstream(answering(refused)) as one, Upstream(answering(refused)) as other:
        async with gateway(one.url, other.url) as bench:
            assert (await respond(bench, "one")).status == 404
            assert (await respond(bench, "one", previous_response_id=None)).status == 404
        assert len(one.asked) + len(other.asked) == 2


WRONG = b'{"error": {"message": "no", "type": "Bad Request", "param": null, "code": 400}}'
CHUNKED = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + chunk(WRONG[:9]) + chunk(WRONG[9:]) + chunk(b"")
)
WHOLE = ok(WRONG).replace(b"200 OK", b"400 Bad Request")


@pytest.mark.parametrize("refusal", [WHOLE, CHUNKED])
async def test_a_replicas_error_is_said_in_anthropics_shape(refusal: bytes) -> None:
    async with Upstream(answering(refusal)) as replica, gateway(replica.url) as bench:
        answer = await bench.ask(post(MESSAGES, chat(), HEAD))
        assert (answer.status, answer.whole) == (400, True)
        assert answer.json == {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "no"},
            "request_id": answer.headers["request-id"],
        }
        plain = await bench.ask(post("/v1/chat/completions", chat(), HEAD))
        assert json.loads(plain.body) == json.loads(WRONG)
