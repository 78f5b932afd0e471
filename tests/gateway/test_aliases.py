"""Aliases, splits and shadows over real sockets: what each replica gets, and who waits for whom."""

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest

from tests.raw import (
    CHAT,
    EVENTS,
    TEXT,
    Answer,
    Peer,
    Script,
    Upstream,
    answering,
    chat,
    get,
    json_bytes,
    ok,
    post,
    stream,
    until,
)
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tokenlane.config.settings import Settings
from tokenlane.fleet_state import FleetState
from tokenlane.telemetry.metrics import families

IN_CHUNKS = stream(b"{}").replace(b"text/event-stream", b"application/json")
SHADOW = {"shadows": {"demo": {"to": "new", "ratio": 1.0}}}


def settings(models: dict[str, Any], **more: Any) -> Settings:
    return msgspec.convert({"models": models, **more}, Settings)


def fleet(old: Upstream, new: Upstream, *, new_up: bool = True) -> FleetState:
    """Two pools of one replica: `demo` and `new`."""
    state = replicas((old.url, new.url))
    other = msgspec.structs.replace(state.replicas[1], models=("new",), up=new_up)
    return msgspec.structs.replace(state, replicas=(state.replicas[0], other))


def model_of(body: bytes) -> str:
    name: str = json.loads(body)["model"]
    return name


async def ask(bench: Bench, name: str, text: str = "hello", headers: str = "") -> Answer:
    return await bench.ask(post(CHAT, chat(text, model=name), headers))


async def test_an_alias_is_served_by_its_model_and_nothing_else_changes() -> None:
    body = b'{ "x":1e0,"model": "gpt-4o" ,"messages":[{"role":"user","content":"\\u0041 b"}]}'
    async with (
        Upstream(answering(ok(b'{"model":"demo"}'))) as upstream,
        gateway(upstream.url, settings=settings({"aliases": {"gpt-4o": "demo"}})) as bench,
    ):
        answer = await bench.ask(post(CHAT, body))
        assert bench.metric(families.NAMED, "gpt-4o", "demo") == 1
    assert (answer.status, answer.json["model"]) == (200, "demo")
    sent = upstream.asked[0].body
    assert json.loads(sent) == {**json.loads(body), "model": "demo"}
    assert b'"x":1e0' in sent
    assert b'"messages":[{"role":"user","content":"\\u0041 b"}]' in sent


async def test_what_has_no_other_name_goes_on_byte_for_byte() -> None:
    body = b' {"messages":[],  "model":"demo"}'
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=settings({"aliases": {"gpt-4o": "demo"}})) as bench,
    ):
        await bench.ask(post(CHAT, body))
    assert upstream.asked[0].body == body


async def test_an_alias_shares_its_models_prefix_and_its_ids() -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(
            upstream.url,
            tokenizer=demo_tokenizer(),
            settings=settings({"aliases": {"gpt-4o": "demo"}}),
        ) as bench,
    ):
        await ask(bench, "demo", "word " * 100)
        answer = await ask(bench, "gpt-4o", "word " * 100)
        assert int(answer.headers["x-tokenlane-cached-tokens"]) > 0
        text = json_bytes({"model": "gpt-4o", "prompt": "word"})
        await bench.ask(post(TEXT, text))
        told = await bench.ask(post("/tokenize", text))
        assert told.json["tokens"]
    assert json.loads(upstream.asked[2].body)["prompt"] == told.json["tokens"]
    assert model_of(upstream.asked[2].body) == "demo"


async def test_names_are_listed_and_said_where_one_is_unknown() -> None:
    models = {
        "aliases": {"gpt-4o": "demo", "nobody": "none"},
        "splits": {"chat": {"demo": 1, "new": 3}},
    }
    async with Upstream(answering(ok())) as old, Upstream(answering(ok())) as new:
        state = fleet(old, new)
        async with gateway(settings=settings(models), state=state) as bench:
            listed = await bench.ask(get("/v1/models"), "GET")
            wrong = await ask(bench, "gpt-5")
            nobody = await ask(bench, "nobody")
    roots = {card["id"]: card["root"] for card in listed.json["data"]}
    assert roots == {"demo": "demo", "new": "new", "gpt-4o": "demo", "chat": "new"}
    assert (wrong.status, nobody.status) == (404, 404)
    assert wrong.error["message"] == (
        'The model "gpt-5" does not exist; did you mean "gpt-4o"?'
        " Served: demo, new, gpt-4o, nobody, chat."
    )


async def test_a_split_keeps_conversations_together_and_moves_when_a_pool_is_down() -> None:
    models = {"splits": {"chat": {"demo": 1, "new": 1}}}
    async with Upstream(answering(ok())) as old, Upstream(answering(ok())) as new:
        async with gateway(settings=settings(models), state=fleet(old, new)) as bench:
            for number in range(12):
                for turn in range(2):
                    messages = [{"role": "user", "content": f"question {number}"}]
                    messages += [{"role": "user", "content": "more"}] * turn
                    body = json_bytes({"model": "chat", "messages": messages})
                    assert (await bench.ask(post(CHAT, body))).status == 200
            counts = [bench.metric(families.NAMED, "chat", model) for model in ("demo", "new")]
            assert [len(old.asked), len(new.asked)] == counts
            assert all(counts)
            for upstream, model in ((old, "demo"), (new, "new")):
                assert {model_of(asked.body) for asked in upstream.asked} == {model}
                said = [json.loads(asked.body)["messages"] for asked in upstream.asked]
                assert [len(messages) for messages in said] == [1, 2] * (len(said) // 2)
            bench.gateway.update(fleet(old, new, new_up=False))
            before = len(old.asked)
            for number in range(12):
                assert (await ask(bench, "chat", f"question {number}")).status == 200
            assert len(old.asked) == before + 12


async def test_a_copy_goes_to_the_shadow_and_its_answer_nowhere() -> None:
    async with Upstream(answering(stream())) as old, Upstream(answering(ok(b"other"))) as new:
        async with gateway(settings=settings(SHADOW), state=fleet(old, new)) as bench:
            answer = await bench.ask(
                post(CHAT, chat(stream=True), "x-request-id: mine\r\nx-own: 1\r\n")
            )
            assert answer.body == b"".join(EVENTS)
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 1)
            assert bench.metric(families.SHADOW_DURATION, "new") == 1
            assert bench.outcomes() == {("200", "ok"): 1}
    [copy] = new.asked
    assert json.loads(copy.body) == {**json.loads(old.asked[0].body), "model": "new"}
    assert copy.values(b"x-request-id") == [b"mine-shadow"]
    assert copy.values(b"x-tokenlane-shadow") == [b"1"]
    assert copy.values(b"x-own") == [b"1"]
    assert old.asked[0].values(b"x-tokenlane-shadow") == []


@pytest.mark.parametrize(("answer", "learned"), [(stream(), True), (IN_CHUNKS, False)])
async def test_a_copys_stream_tells_how_fast_its_replica_prefills(
    answer: bytes, learned: bool
) -> None:
    async with Upstream(answering(ok())) as old, Upstream(answering(answer)) as new:
        async with gateway(settings=settings(SHADOW), state=fleet(old, new)) as bench:
            await ask(bench, "demo", "words " * 20_000)
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 1)
            assert (bench.gateway.router.progress.rate(1) > 0) == learned


async def test_a_copy_has_text_where_the_request_went_as_ids() -> None:
    async with Upstream(answering(ok())) as old, Upstream(answering(ok())) as new:
        async with gateway(
            settings=settings(SHADOW), state=fleet(old, new), tokenizer=demo_tokenizer()
        ) as bench:
            await bench.ask(post(TEXT, json_bytes({"model": "demo", "prompt": "some words"})))
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 1)
    assert isinstance(json.loads(old.asked[0].body)["prompt"], list)
    assert json.loads(new.asked[0].body)["prompt"] == "some words"


async def test_nobody_waits_for_a_copy_and_their_number_is_bounded() -> None:
    free = asyncio.Event()

    async def silent(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await peer.asked()
                await free.wait()
                await peer.send(ok())

    models = {**SHADOW, "shadow_limit_count": 2}
    async with Upstream(answering(ok())) as old, Upstream(silent) as new:
        async with gateway(settings=settings(models), state=fleet(old, new)) as bench:
            for number in range(5):
                assert (await ask(bench, "demo", f"question {number}")).status == 200
            assert bench.metric(families.SHADOWS, "new", "full") == 3
            await until(lambda: len(new.asked) == 2)
            free.set()
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 2)
            await ask(bench, "demo", "another")
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 3)


async def test_bytes_of_copies_are_bounded_too() -> None:
    models = {**SHADOW, "shadow_limit_bytes": 10}
    async with Upstream(answering(ok())) as old, Upstream(answering(ok())) as new:
        async with gateway(settings=settings(models), state=fleet(old, new)) as bench:
            assert (await ask(bench, "demo")).status == 200
            assert bench.metric(families.SHADOWS, "new", "full") == 1
    assert not new.asked


async def broken(peer: Peer) -> None:
    await peer.asked()
    peer.reset()


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (broken, "failed"),
        (answering(b"HTTP/1.1 500 E\r\ncontent-length: 0\r\n\r\n"), "refused"),
    ],
)
async def test_what_happens_to_a_copy_happens_to_nobody_else(script: Script, outcome: str) -> None:
    async with Upstream(answering(ok())) as old, Upstream(script) as new:
        async with gateway(settings=settings(SHADOW), state=fleet(old, new)) as bench:
            assert (await ask(bench, "demo")).status == 200
            await until(lambda: bench.metric(families.SHADOWS, "new", outcome) == 1)
            # Once, and without a word against the replica.
            assert len(new.asked) == 1
            assert not bench.gateway.router.health.troubled
            assert bench.outcomes() == {("200", "ok"): 1}
            bench.gateway.update(fleet(old, new, new_up=False))
            assert (await ask(bench, "demo")).status == 200
            assert bench.metric(families.SHADOWS, "new", "nobody") == 1


async def test_a_copy_outlives_its_client_but_not_the_gateway() -> None:
    async def silent(peer: Peer) -> None:
        await peer.asked()
        await peer.gone()

    async with Upstream(silent) as old, Upstream(silent) as new:
        async with gateway(settings=settings(SHADOW), state=fleet(old, new)) as bench:
            client = await bench.client()
            await client.send(post(CHAT, chat()))
            await until(lambda: new.asked and old.asked)
            client.close()
            await until(lambda: bench.outcomes() == {("499", "client_gone"): 1})
            assert "1 under way" in repr(bench.gateway.shadows)
            bench.gateway.shadows.close()
            await until(lambda: bench.metric(families.SHADOWS, "new", "stopped") == 1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/embeddings", {"input": "hello"}),
    ],
)
async def test_names_hold_in_every_dialect(path: str, body: dict[str, Any]) -> None:
    models = {"aliases": {"gpt-4o": "demo"}, **SHADOW}
    async with Upstream(answering(ok())) as old, Upstream(answering(ok())) as new:
        async with gateway(
            settings=settings(models), state=fleet(old, new), tokenizer=demo_tokenizer()
        ) as bench:
            answer = await bench.ask(post(path, json_bytes({"model": "gpt-4o", **body})))
            assert answer.status == 200
            await until(lambda: bench.metric(families.SHADOWS, "new", "ok") == 1)
    assert json.loads(old.asked[0].body) == {"model": "demo", **body}
    assert json.loads(new.asked[0].body) == {"model": "new", **body}
