"""What is made of a prompt before it is routed: ids where anything wants them, and room."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.raw import (
    CHAT,
    DONE,
    EVENTS,
    TEXT,
    Upstream,
    answering,
    chat,
    json_bytes,
    ok,
    post,
    stream,
    until,
)
from tests.support import Bench, demo_tokenizer, gateway, replicas, slow_tokenizer
from tokenlane.config.settings import RoutingSettings, Settings, TokenSettings
from tokenlane.fleet_state import FleetState
from tokenlane.gateway.prompt_reader import is_due
from tokenlane.protocols.bodies import CompletionBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.telemetry.metrics import families


async def tokens_of(bench: Bench, body: bytes, path: str = CHAT) -> tuple[str, str, str]:
    answer = await bench.ask(post(path, body))
    assert answer.status == 200
    headers = answer.headers
    return (
        headers["x-tokenlane-replica"],
        headers["x-tokenlane-route"],
        headers.get("x-tokenlane-cached-tokens", ""),
    )


async def test_a_prefix_is_followed() -> None:
    system = "You are a patient assistant who explains every step. " * 20
    async with Upstream(answering(ok())) as one, Upstream(answering(ok())) as other:
        async with gateway(one.url, other.url, tokenizer=demo_tokenizer()) as bench:
            first, reason, cached = await tokens_of(bench, chat(system + "a"))
            assert (reason, cached) == ("affinity cold", "0")
            for question in ("b", "c", "d"):
                where, reason, cached = await tokens_of(bench, chat(system + question))
                assert (where, reason) == (first, "affinity prefix")
                assert int(cached) > 100
            where, reason, _ = await tokens_of(bench, chat("something else " * 40))
            assert (where != first, reason) == (True, "affinity cold")
            assert bench.metric(families.ROUTED, "affinity", "prefix") == 3


PROMPTS: list[object] = ["hello", ["hello", "world"], [1, 2, 3], [[1, 2], [3]]]

TEXT_ONLY = Settings(tokens=TokenSettings(forward_tokens="off"))


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
async def test_every_kind_of_prompt(prompt: object) -> None:
    body = json_bytes({"model": "demo", "prompt": prompt})
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=TEXT_ONLY, tokenizer=demo_tokenizer()) as bench:
            _, reason, cached = await tokens_of(bench, body, TEXT)
            assert (reason, cached) == ("affinity only-one", "0")
            assert upstream.asked[0].body == body
            assert bench.metric(families.PROMPT_TOKENS, "demo") > 0


async def test_what_cannot_be_tokenized_here_goes_on_as_text() -> None:
    content = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
    body = json_bytes({"model": "demo", "messages": [{"role": "user", "content": content}]})
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, tokenizer=demo_tokenizer()) as bench:
            assert (await tokens_of(bench, body))[1:] == ("affinity bail", "")
            assert bench.metric(families.BAILS, "multimodal") == 1


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_replicas_count_is_compared_with_ours(streamed: bool) -> None:
    usage = b'{"prompt_tokens":9999,"prompt_tokens_details":{"cached_tokens":16}}'
    body = b'{"choices":[],"usage":' + usage + b"}"
    answer_bytes = stream(*EVENTS[:4], b"data: " + body + b"\n\n", DONE) if streamed else ok(body)
    async with Upstream(answering(answer_bytes)) as upstream:
        async with gateway(upstream.url, tokenizer=demo_tokenizer()) as bench:
            await bench.ask(post(CHAT, chat(stream=streamed)))
            await until(lambda: bench.metric(families.MISMATCHES, "demo", upstream.url[7:]) == 1)
            assert bench.metric(families.ACTUAL_CACHED, "demo") == 16


async def test_what_may_be_too_long_is_counted_or_refused() -> None:
    """Where the ladder is full; what surely fits goes on without its ids."""
    tokens = TokenSettings(
        thread_hop_s=0.0, stall_budget_s=0.0, threads=2, queue_limit_jobs=1, needed_wait_s=0.001
    )
    async with Upstream(answering(ok(b"{}"))) as upstream:
        (one,) = replicas([upstream.url]).replicas
        state = FleetState(1, (msgspec.structs.replace(one, max_model_tokens=400),))
        async with gateway(
            state=state, settings=Settings(tokens=tokens), tokenizer=slow_tokenizer()
        ) as bench:
            client = await bench.client()
            huge = inspect(Kind.COMPLETION, json_bytes({"prompt": "many words. " * 100_000}))
            assert isinstance(huge, CompletionBody)
            worked_on = asyncio.get_running_loop().create_task(bench.tokens.prompt("demo", huge))
            await until(lambda: bench.tokens.threads.queued_jobs == 1)
            short = await client.ask(post(CHAT, chat("hello")))
            long = await client.ask(post(CHAT, chat("hello " * 400)))
            assert short.status == 200
            assert (long.status, long.headers["retry-after"]) == (503, "1")
            assert long.json["error"]["code"] == "tokenizer_overloaded"
            await worked_on


async def test_hashes_follow_the_replicas_block_size() -> None:
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, tokenizer=demo_tokenizer()) as bench:
            body = chat("words " * 100)
            await bench.ask(post(CHAT, body))
            assert len(bench.tokens.cache) == 1
            bench.gateway.update(replicas([upstream.url], block_tokens=32))
            assert (bench.tokens.block_tokens, len(bench.tokens.cache)) == (32, 0)
            await bench.ask(post(CHAT, body))
            _, _, cached = await tokens_of(bench, body)
            assert int(cached) % 32 == 0


@pytest.mark.parametrize(
    ("policy", "tokens", "made"),
    [
        ("round-robin", {}, True),
        ("affinity", {"context_check": False, "forward_tokens": "off"}, True),
        ("round-robin", {"context_check": False, "forward_tokens": "off"}, False),
        ("least-work", {"context_check": False, "forward_tokens": "completions"}, True),
    ],
)
async def test_ids_are_made_where_something_wants_them(
    policy: str, tokens: dict[str, Any], made: bool
) -> None:
    settings = Settings(
        routing=RoutingSettings(policy=policy), tokens=TokenSettings(thread_hop_s=1.0, **tokens)
    )
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            answer = await bench.ask(post(CHAT, chat()))
            assert answer.status == 200
            assert ("x-tokenlane-cached-tokens" in answer.headers) is made
            await until(lambda: bench.metric(families.REQUESTS, CHAT, "200", "ok") == 1)
            assert bench.metric(families.TOKENIZE, "short", "demo") == made
            assert bench.metric(families.TOKENIZE, "bail", "demo") == 0


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_some_of_what_could_be_forwarded_goes_as_text(ratio: float) -> None:
    settings = Settings(tokens=TokenSettings(as_text_ratio=ratio))
    body = json_bytes({"model": "demo", "prompt": "some words"})
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench:
            await bench.ask(post(TEXT, body))
            assert (upstream.asked[0].body == body) is (ratio == 1.0)
            for _ in range(3):  # at most one a second
                await bench.ask(post(TEXT, body))
            assert any(asked.body != body for asked in upstream.asked)


def test_a_replica_gives_one_sample_a_second() -> None:
    due_s: dict[int, float] = {}
    asked = [(0, 5.0), (0, 5.5), (1, 5.5), (0, 5.999), (0, 6.0), (0, 6.5), (1, 6.5)]
    assert [is_due(due_s, slot, now_s) for slot, now_s in asked] == [
        True, False, True, False, True, False, True,
    ]  # fmt: skip


async def test_a_long_prompt_is_refused_only_by_ids_that_every_replica_has_proven() -> None:
    body = json_bytes({"model": "demo", "prompt": "many words. " * 400})
    async with Upstream(answering(ok())) as one, Upstream(answering(ok())) as other:
        urls = one.url, other.url
        proven = replicas(urls, max_model_tokens=100)
        unproven = replicas(urls, max_model_tokens=100, proofs={})
        async with gateway(state=proven, tokenizer=demo_tokenizer()) as bench:
            assert (await bench.ask(post(TEXT, body))).status == 400
            mixed = FleetState(2, (proven.replicas[0], unproven.replicas[1]))
            bench.gateway.update(mixed)
            assert (await bench.ask(post(TEXT, body))).status == 200
            down = msgspec.structs.replace(unproven.replicas[1], up=False)
            bench.gateway.update(FleetState(3, (proven.replicas[0], down)))
            assert (await bench.ask(post(TEXT, body))).status == 400
            # What the client counted itself needs no proof.
            bench.gateway.update(unproven)
            ids = json_bytes({"model": "demo", "prompt": list(range(5, 300))})
            assert (await bench.ask(post(TEXT, ids))).status == 400
