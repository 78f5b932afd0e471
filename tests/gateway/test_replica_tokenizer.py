"""Ids that only a replica knows: asked of simulated replicas over real sockets, kept, and done
without wherever that goes wrong."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.raw import CHAT, Answer, Peer, Script, Upstream, json_bytes, ok, post, until
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.prompt import Rung
from tokenlane.protocols.bodies import CompletionBody, Kind, OtherBody
from tokenlane.protocols.inspection import inspect
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

TEXT = "a long question about the tables of a database. " * 40
HEAD = "content-type: application/json\r\n"
# A busy machine answers late.
PATIENT = Settings(tokens=TokenSettings(ask_deadline_s=30.0))


@asynccontextmanager
async def serving(count: int = 2, **more: Any) -> AsyncIterator[tuple[SimulatedFleet, Bench]]:
    """Simulated replicas, and a gateway that has no tokenizer for their model."""
    async with SimulatedFleet(SimulatorSettings(), tokenizer=demo_tokenizer()) as fleet:
        await fleet.start(count)
        urls = [replica.url for replica in fleet.replicas]
        async with gateway(*urls, settings=PATIENT, asks=True, **more) as bench:
            yield fleet, bench


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], **fields}


async def send(bench: Bench, body: dict[str, Any], path: str = CHAT) -> Answer:
    return await bench.ask(post(path, json.dumps({"max_tokens": 1, **body}).encode(), HEAD))


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
REQUESTS: list[tuple[str, Kind, dict[str, Any]]] = [
    (CHAT, Kind.CHAT, chat("hello")),
    (CHAT, Kind.CHAT, chat("hello", tools=[TOOL], tool_choice="none")),
    (CHAT, Kind.CHAT, chat("hello", add_generation_prompt=False)),
    ("/v1/completions", Kind.COMPLETION, {"model": "demo", "prompt": TEXT * 9}),
    ("/v1/completions", Kind.COMPLETION, {"model": "demo", "prompt": "x", "echo": False}),
    ("/v1/messages", Kind.MESSAGES, chat("hello", system="Be brief.")),
    ("/v1/responses", Kind.RESPONSES, {"model": "demo", "input": "hello", "store": False}),
]


@pytest.mark.parametrize(("path", "kind", "body"), REQUESTS)
async def test_the_ids_are_the_replicas(path: str, kind: Kind, body: dict[str, Any]) -> None:
    async with serving(1) as (_, bench):
        answer = await send(bench, body, path)
        assert answer.status == 200
        assert bench.metric(families.TOKENIZE, "replica", "demo") == 1
        request = inspect(kind, json.dumps(body).encode())
        assert not isinstance(request, OtherBody)
        kept = bench.tokens.known("demo", request)
        assert not isinstance(kept, bytes)
        assert kept.rung is Rung.CACHE
        assert kept.prompt is not None
        tokenizer = demo_tokenizer()
        expected = (
            tokenizer.completion_ids(request)
            if isinstance(request, CompletionBody)
            else (tokenizer.chat_ids(request),)
        )
        assert kept.prompt.sequences == expected
        assert not bench.gateway.prover.trust.claim("demo", 3).refuted


async def test_a_prefix_is_followed_and_a_prompt_is_asked_for_once() -> None:
    async with serving() as (_, bench):
        first, second = await send(bench, chat(TEXT)), await send(bench, chat(TEXT))
        assert first.headers["x-tokenlane-route"] == "affinity cold"
        assert second.headers["x-tokenlane-route"] == "affinity prefix"
        assert first.headers["x-tokenlane-replica"] == second.headers["x-tokenlane-replica"]
        cached = json.loads(second.body)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(second.headers["x-tokenlane-cached-tokens"]) == cached > 0
        assert bench.metric(families.TOKENIZE, "replica", "demo") == 1
        assert bench.metric(families.TOKENIZE, "cache", "demo") == 1


async def test_prompts_that_are_ids_are_nobodys_question() -> None:
    async with serving(1) as (_, bench):
        body = {"model": "demo", "prompt": list(range(5, 50))}
        assert (await send(bench, body, "/v1/completions")).status == 200
        assert bench.metric(families.TOKENIZE, "token-input", "demo") == 1


def renamed(folder: Path, architecture: str) -> Tokenizer:
    """The demo model's tokenizer, as that of another kind of model."""
    shutil.copytree(demo_folder(), folder, dirs_exist_ok=True)
    config = folder / "config.json"
    known = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps({**known, "architectures": [architecture]}))
    return Tokenizer.load("demo", folder)


async def test_only_what_a_folder_does_not_say_is_asked(tmp_path: Path) -> None:
    tokenizer = renamed(tmp_path, "DeepseekV4ForCausalLM")
    assert tokenizer.fast.template == "replica"
    async with serving(1, tokenizer=tokenizer) as (_, bench):
        assert (await send(bench, chat("hello"))).status == 200
        assert (
            await send(bench, {"model": "demo", "prompt": "x"}, "/v1/completions")
        ).status == 200
        assert bench.metric(families.TOKENIZE, "replica", "demo") == 1
        assert bench.metric(families.TOKENIZE, "short", "demo") == 1


async def test_a_renderer_that_tokenize_does_not_share_is_not_asked(tmp_path: Path) -> None:
    renamed(tmp_path, "GptOssForCausalLM")
    # As with gpt-oss, all added tokens are harmony's.
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["added_tokens"] = [one for one in spec["added_tokens"] if one["content"][:2] == "<|"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load("demo", tmp_path)
    assert tokenizer.fast.template == "harmony"
    async with serving(1, tokenizer=tokenizer) as (_, bench):
        assert (await send(bench, chat("hello"))).status == 200
        assert bench.metric(families.TOKENIZE, "replica", "demo") == 0
        assert bench.metric(families.TOKENIZE, "short", "demo") == 1


def answering(tokenize: bytes | None) -> Script:
    """A replica with this answer to /tokenize (None: none at all), and a good one to all else."""

    async def script(peer: Peer) -> None:
        while True:
            try:
                asked = await peer.asked()
            except EOFError:
                return
            if not asked.line.startswith(b"POST /tokenize"):
                await peer.send(ok(b"{}"))
            elif tokenize is not None:
                await peer.send(tokenize)

    return script


def questions(replica: Upstream) -> int:
    return sum(asked.line.startswith(b"POST /tokenize") for asked in replica.asked)


IDS = json_bytes({"count": 3, "tokens": [1, 2, 3]})


@pytest.mark.parametrize(
    ("answer", "reason", "rests"),
    [
        (ok(IDS).replace(b"200 OK", b"404 Not Found"), "replica-refused", True),
        (ok(IDS).replace(b"200 OK", b"500 Error"), "replica-refused", True),
        (ok(IDS).replace(b"200 OK", b"400 Bad Request"), "replica-refused", False),
        (ok(b"{}"), "replica-failed", True),
        # llama.cpp's server, which does not know `prompt`.
        (ok(b'{"tokens":[]}'), "replica-failed", True),
        (ok(b'{"more":%b%b}' % (b"[" * 3000, b"]" * 3000)), "replica-failed", True),
        (b"SSH-2.0-x\r\n\r\n", "replica-failed", True),
        (None, "replica-late", True),
    ],
)
async def test_what_goes_wrong_is_a_reason_and_the_request_is_served(
    answer: bytes | None, reason: str, rests: bool
) -> None:
    # Long enough for the question to arrive, however busy the machine is.
    short = Settings(tokens=TokenSettings(ask_deadline_s=1.0))
    async with (
        Upstream(answering(answer)) as replica,
        gateway(replica.url, settings=PATIENT if answer else short, asks=True) as bench,
    ):
        assert (await send(bench, chat("hello"))).status == 200
        served = await send(bench, chat("and another"))
        assert served.status == 200
        again = "no-tokenizer" if rests else reason
        assert served.headers["x-tokenlane-route"].endswith("no-tokenizer" if rests else "bail")
        assert bench.metric(families.BAILS, reason) == (1 if rests else 2)
        assert bench.metric(families.BAILS, again) >= 1
        assert questions(replica) == (1 if rests else 2)
        # Another process may do better.
        if rests:
            bench.gateway.update(replicas([replica.url], incarnation=1))
            await send(bench, chat("hello again"))
            assert questions(replica) == 2


async def test_questions_under_way_are_bounded() -> None:
    none = Settings(tokens=TokenSettings(ask_limit_count=0))
    async with (
        Upstream(answering(ok(IDS))) as replica,
        gateway(replica.url, settings=none, asks=True) as bench,
    ):
        assert (await send(bench, chat("hello"))).status == 200
        assert bench.metric(families.BAILS, "replica-full") == 1
        assert questions(replica) == 0


async def test_the_replicas_key_is_shown() -> None:
    async with (
        Upstream(answering(ok(IDS))) as replica,
        gateway(replica.url, settings=PATIENT, asks=True, replica_key=Secret(b"k3y")) as bench,
    ):
        await send(bench, chat("hello"))
        assert replica.asked[0].values(b"authorization") == [b"Bearer k3y"]
        assert json.loads(replica.asked[0].body) == chat("hello")


async def test_who_counts_otherwise_is_asked_no_more() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 1}

    async def script(peer: Peer) -> None:
        while True:
            try:
                asked = await peer.asked()
            except EOFError:
                return
            tokenize = asked.line.startswith(b"POST /tokenize")
            await peer.send(ok(IDS if tokenize else json_bytes({"usage": usage})))

    async with (
        Upstream(script) as replica,
        gateway(replica.url, settings=PATIENT, asks=True) as bench,
    ):
        await send(bench, chat("one"))
        await send(bench, chat("two"))
        assert bench.metric(families.MISMATCHES, "demo", replica.url[7:]) == 1
        assert bench.metric(families.BAILS, "other-count") == 1
        assert questions(replica) == 1


async def test_a_client_that_leaves_takes_its_question_along() -> None:
    one = Settings(tokens=TokenSettings(ask_limit_count=1, ask_deadline_s=60.0))
    async with (
        Upstream(answering(None)) as replica,
        gateway(replica.url, settings=one, asks=True) as bench,
    ):
        client = await bench.client()
        await client.send(post(CHAT, json_bytes(chat("hello")), HEAD))
        await until(lambda: questions(replica) == 1)
        client.close()
        await until(lambda: not bench.gateway.in_hand)
        replica.script = answering(ok(IDS))
        assert (await send(bench, chat("another"))).status == 200
        assert bench.metric(families.TOKENIZE, "replica", "demo") == 1
