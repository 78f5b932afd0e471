"""Responses that replicas keep, asked for by name: GET /v1/responses/{id} and .../cancel."""

from typing import Any

import pytest

from tests.gateway.test_kept_responses import HEAD, name_of, respond, serving
from tests.raw import RESPONSES, Answer, Upstream, answering, get, json_bytes, ok, post, stream
from tests.support import Bench, gateway
from tokenlane.routing.candidates import Eligible
from tokenlane.routing.response_homes import ResponseHomes
from tokenlane.telemetry.metrics import families

GONE: dict[str, Any] = {"status": "cancelled", "id": "resp_1", "usage": None, "output": []}


async def fetch(bench: Bench, name: str, query: str = "") -> Answer:
    return await bench.ask(get(f"{RESPONSES}/{name}{query}"), "GET")


async def cancel(bench: Bench, name: str) -> Answer:
    return await bench.ask(post(f"{RESPONSES}/{name}/cancel", b"", HEAD))


def test_homes_are_of_the_last_ones() -> None:
    homes, all_of = ResponseHomes(limit_count=2), Eligible((0, 1, 2), panic=True)
    for name, slot in (("a", 0), ("b", 1), ("a", 2), ("c", 1)):
        homes.learn(name, slot)
    assert len(homes) == 2
    assert homes.first("a", all_of) == Eligible((2,), panic=True)
    assert homes.first("c", all_of) == Eligible((1,), panic=True)
    for unknown in ("b", "", " "):
        assert homes.first(unknown, all_of) is all_of
    others = all_of.without({2})
    assert homes.first("a", others) is others
    sparing = Eligible((0, 1), spared=(2,))
    assert homes.first("a", sparing) == Eligible((2,)), "nobody else has it"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_is_had_from_where_it_is_kept(streamed: bool) -> None:
    async with serving(3) as bench:
        for text in ("one", "two", "three"):
            made = await respond(bench, text, stream=streamed)
            before = bench.metric(families.OUTPUT_TOKENS, "demo")
            name = name_of(made) if not streamed else made.body.split(b'"id":"')[1].split(b'"')[0]
            name = name if isinstance(name, str) else name.decode()
            again = await fetch(bench, name)
            assert again.status == 200
            assert again.json["id"] == name
            assert streamed or again.json == made.json
            assert again.headers["x-tokenlane-replica"] == made.headers["x-tokenlane-replica"]
            # Its tokens were counted when it was made.
            assert bench.metric(families.OUTPUT_TOKENS, "demo") == before
        assert bench.metric(families.RETRIES, "elsewhere") == 0
        assert bench.outcomes() == {("200", "ok"): 6}
        assert bench.metric(families.REQUESTS, "/v1/responses/{id}", "200", "ok") == 3
        assert bench.idle


async def test_where_the_home_is_not_known_each_is_asked_until_it_is() -> None:
    async with serving(4) as bench:
        made = await respond(bench, "one")
        bench.gateway.kept.homes = ResponseHomes()  # as in another worker, or after a restart
        for _ in range(2):
            again = await fetch(bench, name_of(made))
            assert again.json == made.json
        walked = bench.metric(families.RETRIES, "elsewhere")
        for _ in range(3):
            assert (await fetch(bench, name_of(made))).status == 200
        assert bench.metric(families.RETRIES, "elsewhere") == walked < 4
        # What goes on from it goes there at once, too.
        on = await respond(bench, "go on", previous_response_id=name_of(made))
        assert on.headers["x-tokenlane-replica"] == made.headers["x-tokenlane-replica"]
        assert bench.metric(families.RETRIES, "elsewhere") == walked


async def test_a_home_that_was_wrong_is_one_question_more() -> None:
    async with serving(2) as bench:
        made = await respond(bench, "one")
        for slot in (0, 1):
            bench.gateway.kept.homes.learn(name_of(made), slot)
            assert (await fetch(bench, name_of(made))).json == made.json
        assert bench.metric(families.RETRIES, "elsewhere") == 1


@pytest.mark.parametrize("keep", [True, False])
async def test_what_nobody_keeps_is_404_in_the_replicas_words(keep: bool) -> None:
    async with serving(3, keep=keep) as bench:
        made = await respond(bench, "one", store=False)
        for answer in (await fetch(bench, name_of(made)), await cancel(bench, "resp_none")):
            assert answer.status == 404
            assert "not found" in answer.error["message"]
            assert answer.error["param"] == "response_id"
            assert answer.headers["x-request-id"]
        assert bench.metric(families.UPSTREAM_FAILURES) == 0


async def test_what_cannot_be_cancelled_is_said_by_its_replica() -> None:
    async with serving(3) as bench:
        made = await respond(bench, "one")
        answer = await cancel(bench, name_of(made))
        assert answer.status == 400
        assert answer.error["message"] == "Cannot cancel a synchronous response."
        assert answer.headers["x-tokenlane-replica"] == made.headers["x-tokenlane-replica"]


async def test_a_cancelled_response_is_no_failure_of_its_replica() -> None:
    """A replica that says `cancelled` of what it is asked to make would be left out; here it did
    as it was told, and no other has anything better to say."""
    gone = answering(ok(json_bytes(GONE)))
    async with Upstream(gone) as one, Upstream(gone) as other:
        async with gateway(one.url, other.url) as bench:
            for answer in (await cancel(bench, "resp_1"), await fetch(bench, "resp_1")):
                assert (answer.status, answer.json["status"]) == (200, "cancelled")
            assert bench.outcomes() == {("200", "ok"): 2}
            assert not bench.gateway.router.health.troubled
        assert len(one.asked) + len(other.asked) == 2


async def test_a_stream_told_again_passes_as_it_comes() -> None:
    """It may begin behind its last token, and tell of a failure: nothing is tried again."""
    failed = b'event: response.failed\ndata: {"type":"response.failed"}\n\n'
    async with Upstream(answering(stream(failed))) as one, Upstream(answering(ok())) as other:
        async with gateway(one.url, other.url) as bench:
            bench.gateway.kept.homes.learn("resp_1", 0)
            answer = await fetch(bench, "resp_1", "?stream=true&starting_after=7")
            assert (answer.status, answer.body, answer.whole) == (200, failed, True)
            assert bench.outcomes() == {("200", "ok"): 1}
        (asked,) = one.asked
        assert asked.line == b"GET /v1/responses/resp_1?stream=true&starting_after=7 HTTP/1.1"
        assert not other.asked


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/responses/resp_1", 405),
        ("POST", "/v1/responses/resp_1", 405),
        ("GET", "/v1/responses/resp_1/cancel", 405),
        ("GET", "/v1/responses/resp_1/input_items", 404),
        ("GET", "/v1/responses/", 404),
        ("GET", "/v1/responses/..", 404),
        ("GET", "/v1/responses/.", 404),
        ("GET", "/v1/responses/%2e%2e", 404),
        ("GET", "/v1/responses/a%2Fb", 404),
        ("GET", "/v1/responses/a/../../metrics", 404),
        ("POST", "/v1/responses/../cancel", 404),
        ("POST", "/v1/responses/a/b/cancel", 404),
        ("GET", f"/v1/responses/{'a' * 257}", 404),
    ],
)
async def test_nothing_else_reaches_a_replica(method: str, path: str, status: int) -> None:
    async with Upstream(answering(ok())) as replica, gateway(replica.url) as bench:
        answer = await bench.ask(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), method)
        assert answer.status == status
        assert answer.error
        assert not replica.asked
