"""Prompts of 30 MB: of spaces, one letter, program text, Thai. No thread is theirs for long, nobody
else waits for them or loses their ids, and what they took is given back."""

import asyncio
from functools import cache

import psutil
import pytest

from bench.tools.client import fetch
from tests.admission.test_auth import ALICE, AUTH, BOB, bearer
from tests.control.test_supervisor import Gateway
from tests.control.test_supervisor import until as until_now
from tests.raw import CHAT, Upstream, answering, chat, json_bytes, ok, post, until
from tests.support import demo_tokenizer, gateway, replicas, slow_tokenizer
from tests.tokens.models import shared
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.runtime.ports import free_ports
from tokenlane.simulator.subprocess_fleet import FleetProcess
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

SIZE_BYTES = 30_000_000
CONTEXT_TOKENS = 131_072
UNITS = {
    "spaces": " ",
    "letter": "a",
    "program": "def f(x):\n    return x + 1\n\n",
    "thai": "สวัสดีครับผม ชื่อ\n",
    "thai-uncut": "สวัสดีครับ",
}
TOO_LONG = ("spaces", "letter", "program", "thai")
UNCUT = ("spaces", "letter", "thai-uncut")


def long_text(kind: str) -> str:
    unit = UNITS[kind]
    return unit * (SIZE_BYTES // len(unit.encode()))


def long_chat(kind: str) -> bytes:
    """In UTF-8 as it is: escapes would make it longer."""
    return chat("MARK").replace(b"MARK", long_text(kind).replace("\n", "\\n").encode())


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return demo_tokenizer() if name == "demo" else Tokenizer.load("demo", shared(name))


def of_others(number: int) -> bytes:
    """A long prompt of somebody else, never seen before."""
    return post(CHAT, chat(f"{number} " + "some words here " * 20_000))


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "demo") for kind in TOO_LONG), ("spaces", "qwen3"), ("thai", "qwen3")],
)
async def test_others_get_their_ids_beside_one_that_is_too_long(kind: str, name: str) -> None:
    async with Upstream(answering(ok())) as upstream:
        state = replicas([upstream.url], max_model_tokens=CONTEXT_TOKENS)
        tokenizer = tokenizer_of(name)
        async with gateway(upstream.url, state=state, tokenizer=tokenizer) as bench:
            hostile = asyncio.get_running_loop().create_task(bench.ask(post(CHAT, long_chat(kind))))
            await until(lambda: bench.server.state.body_memory.held_bytes)
            others = await asyncio.gather(*(bench.ask(of_others(number)) for number in range(6)))
            assert [answer.status for answer in others] == [200] * 6
            answer = await hostile
            assert (answer.status, answer.error["param"]) == (400, "input_tokens")
            assert f"contains at least {CONTEXT_TOKENS + 1} input tokens" in answer.error["message"]
            assert bench.metric(families.BAILS, "overload") == 0
            assert len(upstream.asked) == 6


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", UNCUT)
async def test_what_cannot_be_cut_is_routed_by_its_text(kind: str) -> None:
    """Where the context is not known."""
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, tokenizer=slow_tokenizer()) as bench:
            hostile = asyncio.get_running_loop().create_task(bench.ask(post(CHAT, long_chat(kind))))
            await until(lambda: bench.server.state.body_memory.held_bytes)
            others = await asyncio.gather(*(bench.ask(of_others(number)) for number in range(2)))
            assert [answer.status for answer in others] == [200] * 2
            assert (await hostile).status == 200
            assert bench.metric(families.BAILS, "uncut") == 1
            assert bench.metric(families.BAILS, "overload") == 0


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_long_answers_of_tokenize_and_detokenize() -> None:
    text = long_text("program")[: SIZE_BYTES // 4]
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, tokenizer=demo_tokenizer()) as bench:
            answer = await bench.ask(post("/tokenize", json_bytes({"prompt": text})))
            assert answer.status == 200
            assert answer.whole
            ids = answer.json["tokens"]
            assert answer.json["count"] == len(ids) > 1_000_000
            asked = json_bytes({"tokens": ids[:20_000]})
            back = (await bench.ask(post("/detokenize", asked))).json["prompt"]
            assert text.startswith(back)
            # To decode so many holds the GIL: a replica answers, with whatever it says.
            assert not upstream.asked
            answer = await bench.ask(post("/detokenize", json_bytes({"tokens": ids})))
            assert (answer.status, len(upstream.asked)) == (200, 1)


@pytest.mark.row("O11")
@pytest.mark.slow
async def test_a_tenant_leaves_room_for_others() -> None:
    settings = Settings(
        auth=AUTH, tokens=TokenSettings(queue_limit_bytes=1_000_000, thread_hop_s=0.0)
    )
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings, tokenizer=slow_tokenizer()) as bench:
            body = "some words here " * 25_000

            async def asked(number: int, key: bytes) -> int:
                return (await bench.ask(post(CHAT, chat(f"{number}{body}"), bearer(key)))).status

            many = [
                asyncio.get_running_loop().create_task(asked(number, ALICE)) for number in range(6)
            ]
            await until(lambda: bench.tokens.threads.queued_jobs)
            assert await asked(6, BOB) == 200
            assert await asyncio.gather(*many) == [200] * 6
            assert bench.metric(families.BAILS, "overload") == 0


@pytest.mark.row("O5")
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_its_memory_is_given_back() -> None:
    with FleetProcess(1, free_ports(1)) as fleet:
        argv = ("serve", "--backend", *fleet.urls, "--tokenizer", f"demo={demo_folder()}")
        with Gateway(*argv) as gate:
            assert gate.chat() == 200
            [worker] = gate.status()["workers"]
            process = psutil.Process(worker["pid"])
            before_bytes = process.memory_info().rss
            for kind in TOO_LONG:
                body = long_chat(kind)
                assert fetch(gate.port, CHAT, body).status == 400
                until_now(lambda: process.memory_info().rss < before_bytes + 50_000_000)
            told = fetch(
                gate.port,
                "/tokenize",
                json_bytes({"prompt": long_text("program")[: SIZE_BYTES // 4]}),
            )
            assert told.status == 200
            assert len(told.body) > SIZE_BYTES // 4
            until_now(lambda: process.memory_info().rss < before_bytes + 50_000_000)
            assert gate.stop() == 0
