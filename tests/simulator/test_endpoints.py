"""Every path of a replica, on real sockets."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.simulator.client import CHAT, TEXT, Client, ask, chat
from tests.simulator.conftest import FleetMaker


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/health", 200, b""),
        ("GET", "/ping", 200, b""),
        ("POST", "/ping", 200, b""),
        ("GET", "/version", 200, b'{"version":"0.32.0"}'),
        ("GET", "/load", 200, b'{"server_load":0}'),
        ("POST", "/reset_prefix_cache", 200, b'{"success":true}'),
        ("GET", "/nowhere", 404, b'{"detail":"Not Found"}'),
        ("GET", CHAT, 405, b'{"detail":"Method Not Allowed"}'),
        ("POST", "/v1/models", 405, b'{"detail":"Method Not Allowed"}'),
    ],
)
async def test_small_paths(url: str, method: str, path: str, status: int, body: bytes) -> None:
    answer = await ask(url, path, method=method)
    assert (answer.status, answer.body) == (status, body)
    assert answer.headers["server"] == "uvicorn"


async def test_models_as_vllm_lists_them(url: str) -> None:
    listed = (await ask(url, "/v1/models", method="GET")).json
    assert listed["object"] == "list"
    (model,) = listed["data"]
    names = ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    assert list(model) == names
    assert (model["id"], model["root"], model["max_model_len"]) == ("demo", "demo", 131_072)


async def test_context_is_no_larger_than_the_cache(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(cache_blocks=10)
    listed = (await ask(fleet.replicas[0].url, "/v1/models", method="GET")).json
    assert listed["data"][0]["max_model_len"] == 160


async def test_tokenize_text_and_chat_and_back(url: str) -> None:
    text = (await ask(url, "/tokenize", {"prompt": "import os", "return_token_strs": True})).json
    assert list(text) == ["count", "max_model_len", "tokens", "token_strs"]
    assert (text["count"], text["token_strs"]) == (len(text["tokens"]), ["import", "\u0120os"])
    back = await ask(url, "/detokenize", {"tokens": text["tokens"]})
    assert back.json == {"prompt": "import os"}
    chatted = (await ask(url, "/tokenize", {"messages": chat()["messages"]})).json
    assert chatted["token_strs"] is None
    answered = (await ask(url, CHAT, chat())).json
    assert answered["usage"]["prompt_tokens"] == chatted["count"]


async def test_embeddings_depend_on_the_text_alone(url: str) -> None:
    body = {"model": "demo", "input": ["hello", "hello", "other"]}
    answer = (await ask(url, "/v1/embeddings", body)).json
    vectors = [row["embedding"] for row in answer["data"]]
    assert vectors[0] == vectors[1] != vectors[2]
    assert all(-1.0 <= value < 1.0 for value in vectors[0])
    single = (await ask(url, "/v1/embeddings", {"input": "hello", "dimensions": 3})).json
    assert single["data"][0]["embedding"] == vectors[0][:3]
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]


# Statuses, types and fields as a real server (0.32.0) answers; tests/vllm compares them.
OPTIONS = {"include_usage": False}
BAD, REFUSED = "Bad Request", "BadRequestError"
ERRORS: list[tuple[str, Any, int, str, str | None, str]] = [
    (CHAT, b"{", 400, BAD, "body.1", "Expecting property name"),
    (CHAT, b'{"model": "demo", ', 400, BAD, "body.18", "json_invalid"),
    (CHAT, b"", 400, BAD, "body", "Field required"),
    (CHAT, b"[]", 400, BAD, "body", "validation error"),
    (CHAT, {"model": "demo"}, 400, BAD, "body.messages", "Field required"),
    (CHAT, {"messages": "x"}, 400, BAD, "body.messages", "valid list"),
    (CHAT, {"messages": []}, 400, REFUSED, None, "empty conversation"),
    (CHAT, chat(n="x"), 400, BAD, "body.n", "validation error"),
    (CHAT, chat(n=0), 400, REFUSED, None, "n must be at least 1, got 0."),
    (CHAT, chat(temperature=-1), 400, REFUSED, "temperature", "non-negative, got -1.0. (param"),
    (CHAT, chat(cache_salt=""), 400, REFUSED, "cache_salt", "(parameter=cache_salt)"),
    (
        CHAT,
        chat(stream_options=OPTIONS),
        400,
        REFUSED,
        "stream_options",
        "(parameter=stream_options)",
    ),
    (CHAT, chat(model="nope"), 404, "NotFoundError", "model", "Valid aliases: demo."),
    (CHAT, chat(max_tokens=0), 400, REFUSED, "max_tokens", "got 0. (parameter=max_tokens"),
    (CHAT, chat(max_tokens=-1), 400, REFUSED, "max_tokens", "got -1. (parameter=max_tokens"),
    (CHAT, chat(max_tokens=10**6), 400, REFUSED, "max_tokens", "max_model_len=131072"),
    (CHAT, chat([{"type": "image_url", "image_url": {"url": "x"}}]), 400, REFUSED, None, "multi"),
    (TEXT, {"model": "demo"}, 400, REFUSED, "prompt", "non-empty. (parameter=prompt)"),
    (TEXT, {"prompt": ""}, 400, REFUSED, "prompt", "non-empty. (parameter=prompt)"),
    (TEXT, {"prompt": []}, 400, REFUSED, None, "at least one prompt"),
    (TEXT, {"prompt": ["a", ""]}, 400, REFUSED, None, "decoder prompt cannot be empty"),
    (TEXT, {"prompt": 3}, 400, BAD, "body.prompt", "validation error"),
    (TEXT, {"prompt": ["a", 1]}, 400, BAD, "body.prompt", "validation error"),
    (TEXT, {"prompt": [-1]}, 400, BAD, "body.prompt", "validation error"),
    (TEXT, {"prompt": [5, 999_999]}, 400, REFUSED, None, "Token id 999999 is out of vocabulary"),
    ("/detokenize", {"tokens": [-1]}, 400, BAD, "body.tokens", "integer"),
    ("/tokenize", {"prompt": 3}, 400, BAD, "body.prompt", "string"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "param", "text"), ERRORS)
async def test_errors_have_vllms_shape(
    url: str, path: str, body: Any, status: int, kind: str, param: str | None, text: str
) -> None:
    answer = await ask(url, path, body)
    error = answer.json["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert error["param"] == param
    assert text in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_longer_than_the_context(make_fleet: FleetMaker, stream: bool) -> None:
    fleet = await make_fleet(max_model_tokens=32)
    url = fleet.replicas[0].url
    over = (await ask(url, TEXT, {"prompt": [1] * 33, "stream": stream})).json["error"]
    assert over["param"] == "input_tokens"
    assert "at least 33 input tokens" in over["message"]
    assert over["message"].endswith("(parameter=input_tokens, value=33)")
    full = (await ask(url, TEXT, {"prompt": [1] * 32, "stream": stream})).json["error"]
    assert full["message"].startswith("max_tokens must be at least 1, got 0.")
    clamped = (await ask(url, TEXT, {"prompt": [1] * 30, "max_tokens": 32})).json
    assert clamped["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("body", [b"\xff", b'{"messages":' + b"[" * 100_000])
async def test_bodies_that_are_no_text_or_too_deep(url: str, body: bytes) -> None:
    answer = await ask(url, CHAT, body)
    assert (answer.status, answer.json) == (400, {"detail": "There was an error parsing the body"})


async def test_types_are_lax_as_in_vllm(url: str) -> None:
    answer = await ask(url, CHAT, chat(max_tokens="2", stream_options={}))
    assert answer.json["usage"]["completion_tokens"] == 2


async def test_content_type_must_be_json(url: str) -> None:
    answer = await ask(url, CHAT, chat(), headers="content-type: text/plain\r\n")
    assert answer.status == 400
    assert "Only 'application/json' is allowed" in answer.json["error"]["message"]


async def test_metrics_have_vllms_names(url: str) -> None:
    for _ in range(2):
        await ask(url, CHAT, chat("hello " * 40, max_tokens=4))
    text = (await ask(url, "/metrics", method="GET")).body.decode()
    samples = {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    queries = samples["vllm:prefix_cache_queries_total", ""]
    assert samples["vllm:prompt_tokens_total", ""] == queries > 100
    assert samples["vllm:prefix_cache_hits_total", ""] == (queries / 2 - 1) // 16 * 16
    assert samples["vllm:generation_tokens_total", ""] == 8
    assert samples["vllm:request_success_total", "length"] == 2
    assert samples["vllm:request_success_total", "abort"] == 0
    assert samples["vllm:time_to_first_token_seconds_count", ""] == 2
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert samples["vllm:" + name, ""] == 0
    assert samples["process_start_time_seconds", ""] > 1.7e9
    assert 'vllm:cache_config_info{block_size="16"' in text


async def test_stats_and_switches_over_http(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(2)
    url, sibling = (replica.url for replica in fleet.replicas)
    assert (await ask(url, "/sim/stats", method="GET")).json["sequences"] == 0
    order = {"kind": "status", "status": 418, "count": 1, "replica": 1}
    assert (await ask(url, "/sim/fault", order)).status == 200
    assert (await ask(sibling, "/sim/fault", method="GET")).json["faults"][0]["status"] == 418
    assert [(await ask(sibling, CHAT, chat())).status for _ in range(2)] == [418, 200]
    await ask(url, "/sim/fault", {"kind": "hang"})
    await ask(sibling, "/sim/fault", method="DELETE")
    assert (await ask(url, CHAT, chat())).status == 200


@pytest.mark.parametrize(
    "order", [b"{", {"kind": "nonsense"}, {"kind": "hang", "replica": 9}, {"knd": "hang"}]
)
async def test_switches_that_do_not_exist(url: str, order: Any) -> None:
    assert (await ask(url, "/sim/fault", order)).status == 400
    assert (await ask(url, "/sim/nothing")).status == 404


async def test_keep_alive_serves_many_requests_and_ends_when_idle(
    make_fleet: FleetMaker,
) -> None:
    fleet = await make_fleet(keep_alive_s=0.05)
    client = await Client.connect(fleet.replicas[0].url)
    for _ in range(3):
        client.send(CHAT, chat())
        assert (await client.answer()).status == 200
    assert await client.eof() == b""
    await client.close()
