"""The gateway in front of two real vLLM servers, as its clients and its replicas see it."""

import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.vllm import prompts
from tests.vllm.conftest import Report
from tests.vllm.processes import Server
from tests.vllm.relay import RecordingRelay
from tests.vllm.versions import read_alike
from tokenlane.protocols.bodies import ChatFields, CompletionFields
from tokenlane.runtime.ports import free_ports
from tokenlane.tokens.tokenizer import Tokenizer

Replicas = tuple[Server, Server]
BLOCK_TOKENS = 32
FREED_WITHIN_S = 2.0


def ask(server: Server, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and the whole body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        payload = json.dumps({"model": "tiny"} | body).encode()
        connection.request("POST", path, payload, {"content-type": "application/json"})
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, headers, answer.read()
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool], within_s: float) -> float:
    """Seconds until it held; fails if it did not in time."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < within_s
        time.sleep(0.02)
    return time.monotonic() - started_s


def test_usage_equals_our_count_on_every_request(
    gateway: Server, tokenizer: Tokenizer, report: Report
) -> None:
    wrong, count = [], 0
    for body in read_alike(prompts.chats()):
        status, _, answer = ask(gateway, "/v1/chat/completions", body | {"max_tokens": 1})
        assert status == 200, (body, answer)
        request = msgspec.json.decode(msgspec.json.encode(body), type=ChatFields)
        told = json.loads(answer)["usage"]["prompt_tokens"]
        wrong += [] if told == len(tokenizer.chat_ids(request)) // 4 else [body]
        count += 1
    for body in prompts.completions():
        status, _, answer = ask(gateway, "/v1/completions", body | {"max_tokens": 1})
        assert status == 200, (body, answer)
        given = msgspec.json.decode(msgspec.json.encode(body), type=CompletionFields)
        ours = sum(len(ids) for ids in tokenizer.completion_ids(given)) // 4
        wrong += [] if json.loads(answer)["usage"]["prompt_tokens"] == ours else [body]
        count += 1
    assert not wrong
    report.add("usage.prompt_tokens equal to ours, through the gateway", count)


def test_turns_of_a_conversation_find_their_prefix(
    fresh_gateway: Server, replicas: Replicas, report: Report
) -> None:
    """Eight conversations of four turns, interleaved: each turn shares all but its end."""
    turns: list[list[dict[str, str]]] = [
        [{"role": "system", "content": f"Conversation {number}. " + "Some rules. " * 200}]
        for number in range(8)
    ]
    hits_before = sum(one.metric("vllm:prefix_cache_hits_total") for one in replicas)
    cached, shared, within = 0, 0, 0
    seen_tokens = [0] * 8
    places: list[set[str]] = [set() for _ in turns]
    for turn in range(4):
        for number, messages in enumerate(turns):
            messages.append({"role": "user", "content": f"Turn {turn} of {number}. " * 10})
            body = {"messages": messages, "max_tokens": 4}
            status, headers, answer = ask(fresh_gateway, "/v1/chat/completions", body)
            assert status == 200, answer
            told = json.loads(answer)
            places[number].add(headers["x-tokenlane-replica"])
            details = told["usage"]["prompt_tokens_details"]["cached_tokens"]
            predicted = int(headers["x-tokenlane-cached-tokens"])
            within += abs(predicted - details) <= BLOCK_TOKENS
            cached += details
            shared += seen_tokens[number] // BLOCK_TOKENS * BLOCK_TOKENS
            seen_tokens[number] = told["usage"]["prompt_tokens"]
            text = told["choices"][0]["message"]["content"] or ""
            messages.append({"role": "assistant", "content": text})
    hits = sum(one.metric("vllm:prefix_cache_hits_total") for one in replicas) - hits_before
    report.add("prefix tokens found / shared with the turn before", f"{cached} / {shared}")
    report.add("the same by vllm:prefix_cache_hits_total", f"{hits:.0f}")
    report.add("predictions within one block of the report", f"{within} of 32")
    assert hits == cached
    assert cached >= 0.9 * shared
    assert within >= 31
    assert all(len(where) == 1 for where in places)
    assert len({next(iter(where)) for where in places}) == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_request(
    gateway: Server, replicas: Replicas, report: Report, stream: bool
) -> None:
    def running() -> float:
        return sum(one.metric("vllm:num_requests_running") for one in replicas)

    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    body = {
        "model": "tiny", "prompt": "count", "max_tokens": 30_000, "ignore_eos": True,
        "stream": stream,
    }  # fmt: skip
    payload = json.dumps(body).encode()
    connection.request("POST", "/v1/completions", payload, {"content-type": "application/json"})
    answer = connection.getresponse() if stream else None
    if answer is not None:
        assert answer.read(100)
    wait_for(lambda: running() == 1, 10.0)
    if answer is not None:
        answer.close()
    connection.close()
    freed_s = wait_for(lambda: running() == 0, FREED_WITHIN_S)
    what = "stream" if stream else "request"
    report.add(f"a left {what} is freed after", f"{freed_s:.2f} s")


@pytest.fixture
def relayed(
    replicas: Replicas, model_folder: Path
) -> Iterator[tuple[Server, tuple[RecordingRelay, ...]]]:
    """A gateway whose replicas are reached through recording relays."""
    relays = tuple(RecordingRelay(one.port) for one in replicas)
    port = free_ports(1)
    command = [sys.executable, "-m", "tokenlane", "serve", "--port", str(port)]
    command += ["--admin-port", str(free_ports(1)), "--tokenizer", f"tiny={model_folder}"]
    for relay in relays:
        command += ["--backend", relay.url]
    server = Server("gateway-relayed", command, port)
    try:
        server.wait()
        yield server, relays
    finally:
        server.stop()
        for relay in relays:
            relay.close()


def test_streams_arrive_byte_for_byte(
    relayed: tuple[Server, tuple[RecordingRelay, ...]], report: Report
) -> None:
    server, relays = relayed
    bodies: list[tuple[str, dict[str, Any]]] = []
    for number in range(24):
        options: dict[str, Any] = {"max_tokens": 1 + number * 7, "stream": True, "seed": number}
        if number % 3 == 0:
            options["stream_options"] = {"include_usage": True}
        if number % 4 == 0:
            options |= {"logprobs": True} if number % 2 == 0 else {}
        messages = [{"role": "user", "content": f"Stream {number} 日本"}]
        bodies.append(("/v1/chat/completions", options | {"messages": messages}))
        bodies.append(
            ("/v1/completions", {"prompt": [f"a {number}", "b"], "stream": True, "max_tokens": 40})
        )
    got = []
    for path, body in bodies:
        status, _, answer = ask(server, path, body)
        assert status == 200, answer
        assert answer.endswith(b"data: [DONE]\n\n")
        got.append(answer)
    sent = [body for relay in relays for body in relay.answers() if body.startswith(b"data: ")]
    assert sorted(got) == sorted(sent)
    report.add("streams equal to what the relay saw, bytes", f"{len(got)}, {sum(map(len, got))}")
