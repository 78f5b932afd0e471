"""Responses that one of two vLLM servers keeps, asked for through the gateway."""

import json
import time
from typing import Any

from tests.vllm.processes import Server

Replicas = tuple[Server, Server]
LIMIT_S = 60.0


def respond(gateway: Server, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "input": text, "max_output_tokens": 8, "temperature": 0, **fields}
    status, made = gateway.post("/v1/responses", body)
    assert status == 200, made
    answer: dict[str, Any] = made
    return answer


def fetch(server: Server, name: str, query: str = "") -> tuple[int, Any]:
    status, body = server.request("GET", f"/v1/responses/{name}{query}")
    return status, json.loads(body)


def settled(gateway: Server, name: str) -> dict[str, Any]:
    """A response that is made in the background, once it is."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        status, made = fetch(gateway, name)
        assert status == 200, made
        if made["status"] not in ("queued", "in_progress"):
            answer: dict[str, Any] = made
            return answer
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def events(body: bytes) -> list[tuple[str, int]]:
    """(type, number) of each."""
    told = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: ")]
    return [(one["type"], one["sequence_number"]) for one in told]


def test_one_server_keeps_it_and_the_gateway_finds_it(replicas: Replicas, gateway: Server) -> None:
    for turn in range(4):
        made = respond(gateway, f"hello {turn}")
        assert sorted(fetch(one, made["id"])[0] for one in replicas) == [200, 404]
        status, again = fetch(gateway, made["id"])
        assert (status, again["id"], again["output"]) == (200, made["id"], made["output"])
        on = respond(gateway, "go on", previous_response_id=made["id"])
        assert on["usage"]["input_tokens"] > made["usage"]["input_tokens"]
        status, refused = gateway.post(f"/v1/responses/{made['id']}/cancel", {})
        assert (status, refused["error"]["param"]) == (400, "response_id")


def test_a_stream_is_kept_too(gateway: Server) -> None:
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 4, "stream": True}
    status, stream = gateway.request("POST", "/v1/responses", body)
    assert status == 200
    (last,) = [line for line in stream.splitlines() if line.startswith(b'data: {"response"')][-1:]
    made = json.loads(last[6:])["response"]
    status, again = fetch(gateway, made["id"])
    assert (status, again["output"]) == (200, made["output"])


def test_one_made_in_the_background(gateway: Server) -> None:
    made = respond(gateway, "hello", background=True, store=True)
    assert made["status"] == "queued"
    done = settled(gateway, made["id"])
    assert done["status"] in ("completed", "incomplete")
    assert done["output"]


def test_one_that_is_cancelled(gateway: Server) -> None:
    made = respond(gateway, "hello", background=True, max_output_tokens=30_000, ignore_eos=True)
    status, gone = gateway.post(f"/v1/responses/{made['id']}/cancel", {})
    assert (status, gone["status"]) == (200, "cancelled")
    assert fetch(gateway, made["id"])[1]["status"] == "cancelled"
    # The gateway goes on as before: nobody failed.
    assert respond(gateway, "and now?")["output"]


def test_a_stream_is_told_again_from_where_it_was_left(gateway: Server) -> None:
    body = {"model": "tiny", "input": "hello", "stream": True, "max_output_tokens": 6}
    status, first = gateway.request("POST", "/v1/responses", body | {"background": True})
    assert status == 200
    told = events(first)
    (name,) = {
        json.loads(line[6:])["response"]["id"]
        for line in first.splitlines()
        if line.startswith(b"data: ") and b'"response.created"' in line
    }
    status, again = gateway.request("GET", f"/v1/responses/{name}?stream=true&starting_after=3")
    assert status == 200
    assert events(again) == told[4:]


def test_nobody_keeps_it(gateway: Server) -> None:
    for status, refused in (
        fetch(gateway, "resp_none"),
        gateway.post("/v1/responses/resp_none/cancel", {}),
    ):
        assert status == 404
        assert "not found" in refused["error"]["message"]
