"""Ways to be fooled about ids: replicas whose tokenizer or template is another than ours, from the
start or from some moment on. Noticed, silent until proven again, and never at others' cost."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.other_ids import Change, Replica, changed, one_more_token, swapped, template
from tests.gateway.watched import EVERY, INTERVAL_S, Watched, watched
from tests.raw import CHAT, LIMIT_S, TEXT, Asked, json_bytes, post, until
from tests.support import demo_tokenizer
from tokenlane.fleet_state import ALL_KINDS, IdKind
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.ids import unpack
from tokenlane.tokens.tokenizer import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.row("P3")]

HEAD = "content-type: application/json\r\n"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
WORDS = "A letter about the tables of a database, and <|extra|> what is in them. "
TOOLS = template("Functions you can call", "Tools that you may call")
THINKING = template("<think>\\n\\n</think>\\n\\n'", "<think>\\n</think>\\n'")
SAME_COUNT = template("<think>\\n\\n</think>\\n\\n'", "</think>\\n\\n<think>\\n\\n'")
RARE = swapped(7001, 6002)
# Two words of every request.
_LETTER, _TABLES = unpack(demo_tokenizer().encode(" letter tables", add_special_tokens=False))[:2]
COMMON = swapped(int(_LETTER), int(_TABLES))


def requests() -> Any:
    """Completions and chats of every kind, each another one."""
    for number in itertools.count():
        text = f"Number {number}. " + WORDS * 2
        messages = [{"role": "user", "content": text}]
        yield TEXT, {"model": "demo", "prompt": text, "user": text}
        yield CHAT, {"model": "demo", "messages": messages}
        yield CHAT, {"model": "demo", "messages": messages, "tools": [TOOL]}
        off = {"enable_thinking": False}
        yield CHAT, {"model": "demo", "messages": messages, "chat_template_kwargs": off}


def report(what: str, requests: int, wrong: int) -> None:
    """A row of docs/exactness.md (`-rP` shows it)."""
    sys.stdout.write(f"{what}: noticed after {requests} requests, {wrong} wrong ids forwarded\n")


async def send(here: Watched, path: str, body: dict[str, Any]) -> int:
    answer = await here.bench.ask(post(path, json_bytes(body), HEAD))
    return answer.status


@asynccontextmanager
async def scene(*replicas: Replica, **more: Any) -> AsyncIterator[Watched]:
    async with watched(*(one.url for one in replicas), **more) as here:
        yield here


async def traffic(here: Watched, count: int, together: int = 1) -> None:
    """together: requests in flight at once, which an idle fleet spreads over its replicas."""
    sent = itertools.islice(requests(), count)
    while some := list(itertools.islice(sent, together)):
        statuses = await asyncio.gather(*(send(here, path, body) for path, body in some))
        assert set(statuses) == {200}


@pytest.mark.parametrize(
    ("change", "refuted"),
    [
        (one_more_token, IdKind.COMPLETION),
        (RARE, IdKind.COMPLETION),
        (TOOLS, IdKind.TOOLS),
        (THINKING, IdKind.OPTIONS),
        (SAME_COUNT, IdKind.OPTIONS),
        (
            template(
                "<|im_start|>assistant\\n' }}\n    {%- if e", "<|im_start|>bot\\n' }}\n    {%- if e"
            ),
            IdKind.CHAT,
        ),
    ],
    ids=["one more token", "swapped", "tools", "kwargs", "same count", "another model"],
)
async def test_what_differs_as_a_replica_appears(
    tmp_path: Path, change: Change, refuted: IdKind
) -> None:
    async with Replica(changed(tmp_path / "m", change)) as replica, scene(replica) as here:
        await until(lambda: here.bench.gateway.fleet.models)
        sent = requests()
        async with asyncio.timeout(LIMIT_S):
            while not here.proof().refuted & refuted:
                assert await send(here, *next(sent)) == 200
        if refuted in (IdKind.TOOLS, IdKind.OPTIONS):
            await until(lambda: here.proven(0, IdKind.COMPLETION | IdKind.CHAT))
        await traffic(here, 40)
        assert replica.wrong == 0
        assert here.proof().refuted == refuted
        assert here.bench.metric(families.MISMATCHES, "demo", replica.url[7:]) == 1
        if refuted in (IdKind.TOOLS, IdKind.OPTIONS):
            assert replica.forwarded > 0  # the other kinds


async def test_one_without_tokenize_gets_text() -> None:
    async with Replica(demo_tokenizer()) as replica, scene(replica) as here:
        replica.tokenizes = False
        await until(lambda: here.proof().why)
        await traffic(here, 20)
        long = {"model": "demo", "prompt": "word " * 6000, "user": "word " * 6000}
        assert await send(here, TEXT, long) == 200
        assert (replica.forwarded, replica.answered) == (0, 21)


async def test_one_wrong_of_two(tmp_path: Path) -> None:
    wrong = Replica(changed(tmp_path / "m", one_more_token))
    async with Replica(demo_tokenizer()) as right, wrong, scene(right, wrong) as here:
        await until(lambda: here.proven(0, ALL_KINDS) and here.proof(1).refuted)
        await traffic(here, 80, together=8)
        assert wrong.wrong == wrong.forwarded == 0
        assert wrong.answered > 0
        assert right.wrong == 0
        assert right.forwarded > right.answered / 3


SIGNS: dict[str, dict[str, Any]] = {
    "start time": {"started_s": 7},
    "version": {"version": "0.33.0"},
    "created": {"created_s": 5000},
    "root": {"root": "demo-2"},
}


@pytest.mark.parametrize("sign", [*SIGNS, "refused", "none"])
async def test_an_upgrade(tmp_path: Path, sign: str) -> None:
    other = changed(tmp_path / "m", COMMON)
    async with Replica(demo_tokenizer()) as replica, scene(replica) as here:
        replica.created_s, replica.started_s = 100, 5
        await until(lambda: here.proven(0, ALL_KINDS))
        await traffic(here, 8)
        assert replica.forwarded
        if sign == "refused":
            await replica.leave()
            # Requests find nobody; the next process is another.
            while here.proof().proven:
                assert await send(here, *next(requests())) in (502, 503)
            replica.tokenizer = other
            replica.come()
        else:
            replica.tokenizer = other
            for name, value in SIGNS.get(sign, {}).items():
                setattr(replica, name, value)
        before, sent = replica.answered, requests()
        async with asyncio.timeout(LIMIT_S):
            while not here.proof().refuted:
                assert await send(here, *next(sent)) in (200, 503)
        report(sign, replica.answered - before, replica.wrong)
        if sign == "refused":
            assert replica.wrong == 0
        if sign == "none":
            assert replica.answered - before <= 250
        so_far = replica.wrong
        await traffic(here, 20)
        assert replica.wrong == so_far


async def test_a_repaired_one_is_trusted_again_soon(tmp_path: Path) -> None:
    async with Replica(changed(tmp_path / "m", COMMON)) as replica, scene(replica) as here:
        await until(lambda: here.proof().refuted)
        replica.tokenizer = demo_tokenizer()
        before = replica.questions
        await until(lambda: here.proven(0, ALL_KINDS))
        assert replica.questions > before
        await traffic(here, 8)
        assert replica.wrong == 0
        assert replica.forwarded > 0


class Odd(Replica):
    """One that makes other ids of some prompts, which no proof would think of. odd: how often it
    was asked for their ids."""

    odd = 0

    def _answer(self, asked: Asked) -> Any:
        self.odd += asked.line.startswith(b"POST /tokenize") and b"zebra" in asked.body
        return super()._answer(asked)

    def _ids(self, body: bytes) -> list[int]:
        ids = super()._ids(body)
        if b"zebra" in body:
            ids[-1] ^= 1
        return ids


async def test_what_one_worker_saw_no_other_one_forgives() -> None:
    async with Odd(demo_tokenizer()) as replica, scene(replica, workers=2) as here:
        await until(lambda: here.proven(0, ALL_KINDS))
        body = {"model": "demo", "messages": [{"role": "user", "content": "a zebra"}]}
        async with asyncio.timeout(LIMIT_S):
            while not here.proof().refuted:
                assert await send(here, CHAT, body) == 200
        # The first worker proved the replica so far, and would find nothing.
        await until(lambda: here.proven(0, IdKind.COMPLETION) and replica.odd > 2)
        wrong = replica.wrong
        assert wrong > 0
        assert here.proof().refuted == IdKind.CHAT
        assert await send(here, CHAT, body) == 200
        assert replica.wrong == wrong


async def test_one_client_cannot_take_it_from_the_others() -> None:
    async with Replica(demo_tokenizer()) as replica, scene(replica) as here:
        replica.excludes = True
        await until(lambda: here.proven(0, ALL_KINDS))
        messages = [{"role": "user", "content": WORDS}]
        odd = {"model": "demo", "messages": messages, "tools": [TOOL], "tool_choice": "none"}
        assert await send(here, CHAT, odd) == 200
        assert here.proof().refuted == IdKind.UNUSED_TOOLS
        assert here.proof().proven == ALL_KINDS & ~IdKind.UNUSED_TOOLS
        before = replica.forwarded
        await traffic(here, 8)
        assert replica.forwarded == before + 8
        # No proof shows it, so it is believed again, later each time.
        await until(lambda: not here.proof().refuted)
        assert await send(here, CHAT, odd) == 200
        assert here.proof().unseen == 2


async def test_no_prompt_is_refused_by_ids_that_are_not_proven(tmp_path: Path) -> None:
    """Ours say that it is too long, the replica's that it is not."""
    longer = changed(tmp_path / "m", lambda tokenizer, _: tokenizer["model"].update(merges=[]))
    async with Replica(demo_tokenizer()) as replica, scene(replica, tokenizer=longer) as here:
        await until(lambda: here.bench.gateway.fleet.models)
        text = "several words " * 1500
        for _ in range(20):
            assert await send(here, TEXT, {"model": "demo", "prompt": text, "user": text}) == 200
        await until(lambda: here.proof().refuted)
        assert await send(here, TEXT, {"model": "demo", "prompt": text, "user": text}) == 200
        asked = json_bytes({"model": "demo", "prompt": "several words"})
        told = json.loads((await here.bench.ask(post("/tokenize", asked, HEAD))).body)
        ours = demo_tokenizer().encode("several words", add_special_tokens=True)
        assert told["count"] == len(ours) // 4


async def test_a_doubted_model_is_silent_until_it_is_proven() -> None:
    doubted = Tokenizer.load("demo", demo_folder(), fast=False)
    doubted.doubts = ("who knows",)
    async with Replica(demo_tokenizer()) as replica, scene(replica, tokenizer=doubted) as here:
        replica.tokenizes = False
        await until(lambda: here.proof().why)
        claim = here.bench.gateway.prover.trust.claim("demo", 1)
        assert claim.silent == {0}
        await traffic(here, 4)
        assert replica.forwarded == 0
        replica.tokenizes = True
        await until(lambda: here.proven(0, ALL_KINDS))
        assert claim.silent == frozenset()


async def test_questions_are_few_once_all_is_proven() -> None:
    settings = msgspec.structs.replace(
        EVERY, tokens=msgspec.structs.replace(EVERY.tokens, check_ratio=0.005)
    )
    async with (
        Replica(demo_tokenizer()) as replica,
        scene(replica, settings=settings) as here,
    ):
        await until(lambda: here.proven(0, ALL_KINDS))
        before = replica.questions
        await traffic(here, 600)
        await until(lambda: not here.bench.gateway.prover._checks)
        assert 1 <= replica.questions - before <= 6
        same = here.bench.metric(families.ID_CHECKS, "demo", replica.url[7:], "same")
        assert same == replica.questions - before
    assert INTERVAL_S < 1
