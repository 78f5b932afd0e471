"""Answers on the wire: field by field, event by event."""

import asyncio

import pytest

from tests.simulator.client import CHAT, TEXT, Client, ask, chat, until
from tests.simulator.conftest import FleetMaker

ID = "x-request-id: my-req-1\r\n"


async def test_whole_chat(url: str) -> None:
    answer = await ask(url, CHAT, chat("hello " * 20, max_tokens=3, seed=1), headers=ID)
    body = answer.json
    assert list(answer.headers) == ["date", "server", "content-type", "vary", "content-length"]
    assert answer.headers["content-type"] == "application/json"
    created, usage = body.pop("created"), body["usage"]
    assert created > 1.7e9
    prompt_tokens = usage["prompt_tokens"]
    content = body["choices"][0]["message"]["content"]
    assert list(body) == [
        "id", "object", "model", "choices", "service_tier", "system_fingerprint", "usage",
        "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params",
        "ec_transfer_params", "metrics",
    ]  # fmt: skip
    assert body["id"] == "chatcmpl-my-req-1"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": content,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "routed_experts": None,
        }
    ]
    assert usage == {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + 3,
        "completion_tokens": 3,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "created_cache_tokens": prompt_tokens // 16 * 16,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


async def test_streamed_chat_byte_for_byte(url: str) -> None:
    body = chat(max_tokens=2, stream=True, stream_options={"include_usage": True})
    whole = (await ask(url, CHAT, chat(max_tokens=2))).json
    answer = await ask(url, CHAT, body, headers=ID)
    names = ["date", "server", "content-type", "vary", "transfer-encoding"]
    assert list(answer.headers) == names
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    created = answer.events[0]["created"]
    first, second = (event["choices"][0]["delta"]["content"] for event in answer.events[1:3])
    assert first + second == whole["choices"][0]["message"]["content"]
    head = (
        '{"id":"chatcmpl-my-req-1","object":"chat.completion.chunk",'
        f'"created":{created},"model":"demo","choices":['
    )
    prompt_tokens = whole["usage"]["prompt_tokens"]
    fingerprint = f'"system_fingerprint":"{whole["system_fingerprint"]}"'
    assert answer.body.decode() == (
        f'data: {head}{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,'
        '"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
        f'data: {head}{{"index":0,"delta":{{"content":"{first}"}},"logprobs":null,'
        '"finish_reason":null,"token_ids":null}]}\n\n'
        f'data: {head}{{"index":0,"delta":{{"content":"{second}"}},"logprobs":null,'
        '"finish_reason":"length","stop_reason":null,"token_ids":null}]}\n\n'
        f'data: {head}],"usage":{{"prompt_tokens":{prompt_tokens},'
        f'"total_tokens":{prompt_tokens + 2},"completion_tokens":2,"prompt_tokens_details":'
        f'{{"cached_tokens":0,"created_cache_tokens":0}}}},{fingerprint}}}\n\n'
        "data: [DONE]\n\n"
    )
    assert answer.chunks == 5


async def test_fingerprint_rides_on_the_last_event_without_usage(url: str) -> None:
    events = (await ask(url, CHAT, chat(max_tokens=2, stream=True))).events
    assert ["system_fingerprint" in event for event in events[:-1]] == [False, False, True]
    assert events[-1] == "[DONE]"


async def test_token_ids_and_continuous_usage(url: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = chat(max_tokens=3, return_token_ids=True)
    whole = (await ask(url, CHAT, asked)).json
    events = (await ask(url, CHAT, {**asked, "stream": True, "stream_options": options})).events
    role, *tokens, usage, _ = events
    prompt_tokens = whole["usage"]["prompt_tokens"]
    assert role["prompt_token_ids"] == whole["prompt_token_ids"]
    assert len(role["prompt_token_ids"]) == prompt_tokens
    assert role["usage"] == {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "completion_tokens_details": None,
    }
    sent = [event["choices"][0]["token_ids"][0] for event in tokens]
    assert sent == whole["choices"][0]["token_ids"]
    assert [event["usage"]["completion_tokens"] for event in tokens] == [1, 2, 3]
    assert usage["choices"] == []
    decoded = await ask(url, "/detokenize", {"tokens": sent})
    assert decoded.json["prompt"] == whole["choices"][0]["message"]["content"]


async def test_whole_completion_of_ids(url: str) -> None:
    asked = {"model": "demo", "prompt": [1, 2, 300], "return_token_ids": True}
    body = (await ask(url, TEXT, asked, headers=ID)).json
    (choice,) = body["choices"]
    assert body["id"] == "cmpl-my-req-1"
    assert list(body) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
        "usage", "kv_transfer_params", "ec_transfer_params", "metrics",
    ]  # fmt: skip
    assert list(choice) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
        "prompt_logprobs", "prompt_token_ids", "routed_experts",
    ]  # fmt: skip
    assert (len(choice["token_ids"]), choice["prompt_token_ids"]) == (16, [1, 2, 300])
    details = body["usage"]["prompt_tokens_details"]
    assert details == {"cached_tokens": 0, "created_cache_tokens": None, "multimodal_tokens": None}


@pytest.mark.parametrize(
    "prompt", ["a b c", ["a b c", "d"], [1, 2, 3], [[1, 2], [3]], ["one", "two", "three"]]
)
@pytest.mark.parametrize("copies", [1, 2])
async def test_choices_of_several_prompts(url: str, prompt: object, copies: int) -> None:
    asked = {"prompt": prompt, "n": copies, "max_tokens": 4}
    whole = (await ask(url, TEXT, asked)).json
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    texts = [choice["text"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == list(range(prompts * copies))
    streamed = (await ask(url, TEXT, {**asked, "stream": True})).events
    joined = [""] * len(texts)
    for event in streamed[:-1]:
        choice = event["choices"][0]
        joined[choice["index"]] += choice["text"]
    assert joined == texts
    assert len(set(texts)) == len(texts)
    assert whole["usage"]["completion_tokens"] == 4 * len(texts)


async def test_completion_stream_shapes(url: str) -> None:
    asked = {"prompt": "a b", "max_tokens": 2, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    first, last, usage, done = (await ask(url, TEXT, {**asked, **options})).events
    assert list(first) == ["id", "object", "created", "model", "choices"]
    names = "index text logprobs finish_reason stop_reason prompt_token_ids token_ids".split()
    assert list(first["choices"][0]) == names
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert done == "[DONE]"


async def test_same_prompt_same_answer_another_seed_another(url: str) -> None:
    texts = []
    for seed in (1, 1, 2, None):
        answer = (await ask(url, CHAT, chat(seed=seed))).json
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1] != texts[2]


async def test_answer_without_a_length_stops_by_itself(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(output_tokens=5)
    answer = (await ask(fleet.replicas[0].url, CHAT, chat())).json
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 5


async def test_forwarded_ids_decide_a_chat(url: str) -> None:
    given = {"prompt_token_ids": [5, 6, 7]}
    body = chat(kv_transfer_params=given, return_token_ids=True)
    answer = (await ask(url, CHAT, body)).json
    assert (answer["prompt_token_ids"], answer["usage"]["prompt_tokens"]) == ([5, 6, 7], 3)


async def test_cached_tokens_and_salts(url: str) -> None:
    seen = []
    for salt in (None, None, "a", "a", "b", None):
        body = {"prompt": list(range(1, 51)), "max_tokens": 1}
        answer = (await ask(url, TEXT, body if salt is None else {**body, "cache_salt": salt})).json
        seen.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert seen == [0, 48, 0, 48, 0, 48]


async def test_details_are_left_out_on_demand(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(report_cached_tokens=False, echo_request_id=True)
    url = fleet.replicas[0].url
    answer = await ask(url, CHAT, chat(), headers=ID)
    assert answer.json["usage"]["prompt_tokens_details"] is None
    assert answer.headers["x-request-id"] == "my-req-1"
    body = chat(stream=True, stream_options={"include_usage": True})
    usage = (await ask(url, CHAT, body)).events[-2]["usage"]
    assert list(usage) == ["prompt_tokens", "total_tokens", "completion_tokens"]


async def test_head_comes_before_the_first_token_and_roles_with_it(
    make_fleet: FleetMaker,
) -> None:
    fleet = await make_fleet(prefill_tokens_per_s=1.0)
    replica = fleet.replicas[0]
    client = await Client.connect(replica.url)
    client.send(CHAT, chat(stream=True))
    status, _ = await client.head()
    assert status == 200
    assert replica.drive.engine.running == 1
    assert client.reader._buffer == bytearray()  # type: ignore[attr-defined]
    await client.close()


async def test_front_end_is_serial_and_skipped_with_ids(make_fleet: FleetMaker) -> None:
    fleet = await make_fleet(frontend_bytes_per_s=10_000.0)
    url = fleet.replicas[0].url
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    texts = [{"prompt": f"{index} " * 240, "max_tokens": 1} for index in range(2)]
    text = asyncio.gather(*(ask(url, TEXT, body) for body in texts))
    ids = await ask(url, TEXT, {"prompt": [1, 2, 3] * 200, "max_tokens": 1})
    assert ids.status == 200
    assert not text.done()
    assert [answer.status for answer in await text] == [200, 200]
    assert loop.time() - started_s >= 0.09


@pytest.mark.parametrize("stream", [False, True])
async def test_queue_limit_answers_503(make_fleet: FleetMaker, stream: bool) -> None:
    fleet = await make_fleet(queue_limit=1, token_interval_s=60.0)
    url = fleet.replicas[0].url
    client = await Client.connect(url)
    client.send(CHAT, chat(stream=True))
    await client.head()
    refused = await ask(url, CHAT, chat("other", stream=stream))
    assert refused.status == 503
    assert refused.json["error"]["type"] == "Service Unavailable"
    await client.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_frees_everything_at_once(
    make_fleet: FleetMaker, stream: bool, how: str
) -> None:
    fleet = await make_fleet(running_limit=1, token_interval_s=60.0)
    replica = fleet.replicas[0]
    engine = replica.drive.engine
    clients = [await Client.connect(replica.url) for _ in range(3)]
    for client in clients:
        client.send(CHAT, chat(stream=stream))
    await until(lambda: (engine.running, engine.waiting, replica.in_flight) == (1, 2, 3))
    for client in clients:
        if how == "reset":
            client.reset()
        else:
            await client.close()
    await until(lambda: (engine.running, engine.waiting, replica.in_flight) == (0, 0, 0))
    assert engine.cache.used_blocks == 0
