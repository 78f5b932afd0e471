"""What replicas get of a prompt, ids or text, and that clients and metrics are told which."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from tests.raw import CHAT, TEXT, Upstream, answering, json_bytes, ok, post, until
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tests.tokens.models import folder_with
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.fleet_state import FleetState, IdKind, Proof
from tokenlane.parts import BODY_PART_BYTES
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.ids import pack
from tokenlane.tokens.tokenizer import Tokenizer

HELLO = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"model": "demo", "prompt": "hello"}
TOOLS = [{"type": "function", "function": {"name": "now"}}]
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
LONG = [{"role": "user", "content": "hello " * 400}]
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"


@cache
def dated_tokenizer() -> Tokenizer:
    with TemporaryDirectory() as made:
        template = "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}"
        return Tokenizer.load("demo", folder_with(Path(made), chat_template=template))


async def sent(bench: Bench, upstream: Upstream, path: str, body: dict[str, Any]) -> bool:
    """Whether ids were sent; the answer's header says the same, and nothing else has changed."""
    raw = json_bytes(body)
    answer = await bench.ask(post(path, raw))
    assert answer.status == 200
    got = upstream.asked[-1].body
    value = json.loads(got)
    if "prompt_token_ids" in (value.get("kv_transfer_params") or {}):
        assert got.startswith(raw[:-1])
        assert value == body | {"kv_transfer_params": value["kv_transfer_params"]}
        ids = True
    elif value.get("prompt") != body.get("prompt"):
        assert body == value | {"prompt": body["prompt"]}
        ids = True
    else:
        assert got == raw
        ids = value.get("prompt") == [1, 2]
    assert answer.headers.get("x-tokenlane-forwarded") == ("ids" if ids else "text")
    return ids


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, HELLO, "proven"),
        (CHAT, HELLO | {"tools": TOOLS, "tool_choice": "required"}, "proven"),
        (CHAT, HELLO | {"tools": TOOLS, "tool_choice": "none"}, "fields"),
        (CHAT, HELLO | {"documents": [{"text": "a"}], "n": 2, "stop": "x"}, "proven"),
        (CHAT, HELLO | {"logprobs": True, "response_format": {"type": "json_object"}}, "proven"),
        (TEXT, PROMPT, "proven"),
        (TEXT, PROMPT | {"prompt": [1, 2]}, "client"),
        (CHAT, HELLO | {"return_prompt_text": True}, "fields"),
        (CHAT, HELLO | {"echo": True}, "fields"),
        (CHAT, HELLO | {"truncate_prompt_tokens": 5}, "fields"),
        (CHAT, HELLO | {"kv_transfer_params": {"do_remote_decode": True}}, "fields"),
        (TEXT, PROMPT | {"prompt_logprobs": 1}, "fields"),
        (TEXT, PROMPT | {"prompt": "", "add_special_tokens": False}, "fields"),
        (CHAT, HELLO | {"messages": [{"role": "user", "content": IMAGE}]}, "no-ids"),
        (MESSAGES, HELLO | {"max_tokens": 5}, "dialect"),
    ],
)
async def test_what_a_request_goes_as(path: str, body: dict[str, Any], reason: str) -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        ids = await sent(bench, upstream, path, body)
        assert ids == (reason in ("proven", "client"))
        assert bench.metric(families.FORWARDED, "ids" if ids else "text", reason) == 1


@pytest.mark.parametrize(
    ("tokens", "path", "reason"),
    [
        ({"forward_tokens": "off"}, TEXT, "off"),
        ({"forward_tokens": "completions"}, CHAT, "off"),
        ({"as_text_ratio": 1.0}, CHAT, "sample"),
    ],
)
async def test_what_the_settings_leave_as_text(
    tokens: dict[str, Any], path: str, reason: str
) -> None:
    settings = Settings(tokens=TokenSettings(**tokens))
    body = HELLO if path == CHAT else PROMPT
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=settings, tokenizer=demo_tokenizer()) as bench,
    ):
        assert not await sent(bench, upstream, path, body)
        assert bench.metric(families.FORWARDED, "text", reason) == 1


@pytest.mark.parametrize(
    ("body", "fields", "reason"),
    [
        (HELLO, {"proofs": {}}, "unproven"),
        (HELLO | {"tools": TOOLS}, {"proofs": {"demo": Proof(proven=3)}}, "unproven"),
        (HELLO, {"proofs": {"demo": Proof(proven=3)}}, "proven"),
        (HELLO | {"messages": LONG}, {"max_model_tokens": 100}, "long"),
    ],
)
async def test_what_depends_on_the_replica(
    body: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    assert IdKind.COMPLETION | IdKind.CHAT == 3
    settings = Settings(tokens=TokenSettings(context_check=False))
    async with Upstream(answering(ok())) as upstream:
        state = replicas([upstream.url], **fields)
        tokenizer = demo_tokenizer()
        async with gateway(state=state, settings=settings, tokenizer=tokenizer) as bench:
            ids = await sent(bench, upstream, CHAT, body)
            assert bench.metric(families.FORWARDED, "ids" if ids else "text", reason) == 1


async def test_each_attempt_goes_as_its_own_replica_takes_it() -> None:
    async with Upstream(answering(ok())) as one, Upstream(answering(ok())) as other:
        both = replicas([one.url, other.url])
        unproven = msgspec.structs.replace(both.replicas[1], proofs={})
        state = FleetState(1, (both.replicas[0], unproven))
        async with gateway(state=state, tokenizer=demo_tokenizer()) as bench:
            for number in range(8):
                text = f"number {number} " * 40
                body = HELLO | {"messages": [{"role": "user", "content": text}]}
                answer = await bench.ask(post(CHAT, json_bytes(body)))
                proven = answer.headers["x-tokenlane-replica"] == one.url[7:]
                assert answer.headers["x-tokenlane-forwarded"] == ("ids" if proven else "text")
            assert one.asked
            assert other.asked
            assert all(b"prompt_token_ids" in asked.body for asked in one.asked)
            assert not any(b"prompt_token_ids" in asked.body for asked in other.asked)


async def test_a_template_that_prints_the_date_keeps_its_ids_to_itself() -> None:
    """Those of a moment ago may be of yesterday; completions know no date."""
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=dated_tokenizer()) as bench,
    ):
        assert not await sent(bench, upstream, CHAT, HELLO)
        assert bench.metric(families.FORWARDED, "text", "date") == 1
        assert await sent(bench, upstream, TEXT, PROMPT)


async def test_a_prompt_that_nobody_reads_is_not_counted() -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        answer = await bench.ask(post(EMBEDDINGS, json_bytes({"model": "demo", "input": "a"})))
        assert "x-tokenlane-forwarded" not in answer.headers


async def test_the_next_turn_of_a_long_chat_goes_as_ids_too() -> None:
    """Its known part is compared, not read, and its ids are those of the whole."""
    tokenizer = demo_tokenizer()
    # On a fast machine the short rung encodes openings of this size, and keeps no body.
    settings = Settings(tokens=TokenSettings(stall_budget_s=1e-9))
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=settings, tokenizer=tokenizer) as bench,
    ):
        messages: list[dict[str, str]] = []
        # A shape is known from its second conversation on, or later, where the machine is busy.
        for name in range(20):
            said = [f"{name} " + "word " * 8000, *(f"turn {at} of {name}" for at in range(4))]
            messages = [
                {"role": ("user", "assistant")[at % 2], "content": one}
                for at, one in enumerate(said)
            ]
            for count in range(1, 6):
                body = HELLO | {"messages": messages[:count]}
                assert await sent(bench, upstream, CHAT, body)
                got = json.loads(upstream.asked[-1].body)["kv_transfer_params"]["prompt_token_ids"]
                chat = inspect(Kind.CHAT, json_bytes(body))
                assert isinstance(chat, ChatBody)
                assert pack(got) == tokenizer.chat_ids(chat)
            if bench.tokens.bodies.hits > 4:
                break
        assert bench.tokens.bodies.hits > 4
        # Of a body in two reads the known part is dropped, and the replica gets the same bytes.
        raw = json_bytes(HELLO | {"messages": messages})
        request, got = post(CHAT, raw), list[bytes | None]()
        known_part = bench.server.state.known_part
        assert known_part is not None

        def told(name: bytes, number: int) -> bytes | None:
            got.append(known_part(name, number))
            return got[-1]

        bench.server.state.known_part = told
        client = await bench.client()
        await client.send(request[:-9_000])
        await until(lambda: any(one._exchange is not None for one in bench.server.connections))
        await client.send(request[-9_000:])
        assert (await client.answer()).status == 200
        assert [part for part in got if part] == [raw[:BODY_PART_BYTES]]
        assert upstream.asked[-1].body.startswith(raw[:-1])
