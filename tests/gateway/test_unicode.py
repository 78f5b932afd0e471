"""Ids equal the replica's own for adversarial Unicode, from a client's bytes to the replica's.

The gateway reads prompts with all it has (fast engines, caches); the simulated replica with the
reference libraries alone, and says at /tokenize what it makes of the same bytes.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from tests.raw import CHAT, TEXT, Answer, Client, Peer, Script, Upstream
from tests.raw import post as plain_post
from tests.support import Bench, gateway
from tests.tokens.encode import adversarial
from tests.tokens.models import SHARED_NAMES, shared
from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer

NAMES = ("demo", *SHARED_NAMES)
SETTINGS = Settings(tokens=TokenSettings(forward_tokens="all"))
_AT_ONCE = 8
SLOW = dict.fromkeys(("qwen3", "deepseek-v4"), "only with --long: it takes seconds to load")


def folder(name: str) -> Path:
    return demo_folder() if name == "demo" else shared(name)


@cache
def backend(name: str) -> Backend:
    return Backend.from_file(str(folder(name) / "tokenizer.json"))


@cache
def tokenizer(name: str, *, fast: bool) -> Tokenizer:
    return Tokenizer.load("demo", folder(name), fast=fast)


def post(path: str, body: bytes) -> bytes:
    return plain_post(path, body, "content-type: application/json\r\n")


def spelled(text: str, turn: int) -> str:
    """As JSON, in UTF-8 or, every other turn, all in escapes."""
    return json.dumps(text, ensure_ascii=turn % 2 == 1)


def whole(answer: Answer) -> bytes:
    head = f"HTTP/1.1 {answer.status} x\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(answer.body)}\r\n\r\n".encode() + answer.body


def passing_on(port: int) -> Script:
    """What came goes on to the replica at this port, and its answer back."""

    async def script(peer: Peer) -> None:
        client = await Client.connect(port)
        try:
            with contextlib.suppress(EOFError, ConnectionError):
                while True:
                    asked = await peer.asked()
                    path = asked.line.split()[1].decode()
                    await peer.send(whole(await client.ask(post(path, asked.body))))
        finally:
            client.close()

    return script


class Scene:
    """A gateway in front of a simulated replica, and what the replica was sent."""

    def __init__(self, bench: Bench, upstream: Upstream, client: Client, replica: Client) -> None:
        self.bench = bench
        self.upstream = upstream
        self._client = client
        self._replica = replica

    async def forwarded(self, path: str, body: bytes) -> Any:
        """The body that the replica got of this one."""
        answer = await self._client.ask(post(path, body))
        assert answer.status == 200, (body, answer.body)
        return json.loads(self.upstream.asked[-1].body)

    async def refused(self, path: str, body: bytes) -> list[int]:
        """The status of the gateway, of the replica, and of its /tokenize."""
        return [
            (await self._client.ask(post(path, body))).status,
            (await self._replica.ask(post(path, body))).status,
            (await self._replica.ask(post("/tokenize", body))).status,
        ]

    async def tokenized(self, body: bytes) -> list[int]:
        """What the replica says of it."""
        answer = await self._replica.ask(post("/tokenize", body))
        assert answer.status == 200, (body, answer.body)
        tokens: list[int] = answer.json["tokens"]
        return tokens


@contextlib.asynccontextmanager
async def scene(name: str) -> AsyncIterator[Scene]:
    async with SimulatedFleet(SimulatorSettings(), tokenizer(name, fast=False)) as fleet:
        (url,) = await fleet.start(1)
        port = int(url.rpartition(":")[2])
        async with (
            Upstream(passing_on(port)) as upstream,
            gateway(upstream.url, settings=SETTINGS, tokenizer=tokenizer(name, fast=True)) as bench,
        ):
            replica = await Client.connect(port)
            try:
                yield Scene(bench, upstream, await bench.client(), replica)
            finally:
                replica.close()


@pytest.mark.row("P4")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
async def test_completions_reach_the_replica_as_the_ids_it_would_make(
    name: str, long: bool, figure: Callable[[str], None]
) -> None:
    """Which are those of the library itself, too."""
    if name in SLOW and not long:
        pytest.skip(SLOW[name])
    corpus = adversarial.texts(folder(name))
    async with scene(name) as here:
        for at in range(0, len(corpus), _AT_ONCE):
            batch = corpus[at : at + _AT_ONCE]
            written = [spelled(text, at // _AT_ONCE) for text in batch]
            body = f'{{"model":"demo","max_tokens":1,"prompt":[{",".join(written)}]}}'
            got = (await here.forwarded(TEXT, body.encode()))["prompt"]
            assert got == [backend(name).encode(text).ids for text in batch]
            for text, ids in zip(written, got, strict=True):
                told = f'{{"model":"demo","prompt":{text}}}'
                assert ids == await here.tokenized(told.encode())
    figure(f"{name}: {len(corpus)} texts")


@pytest.mark.row("P4")
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["demo", "qwen3"])
async def test_chats_reach_the_replica_as_the_ids_it_would_make(name: str, long: bool) -> None:
    """Each text in several roles, and again in the next request, so that what is remembered of it
    is right too."""
    if name in SLOW and not long:
        pytest.skip(SLOW[name])
    corpus = adversarial.texts(folder(name))
    async with scene(name) as here:
        for turn, text in enumerate(corpus):
            one, other = spelled(text, turn), spelled(corpus[turn - 1], turn // 2)
            messages = [
                f'{{"role":"user","content":{one}}}',
                f'{{"role":"assistant","content":{other}}}',
                f'{{"role":"user","content":[{{"type":"text","text":{one}}}]}}',
            ]
            if turn % 3:
                messages = [f'{{"role":"system","content":{other}}}', messages[0]]
            body = f'{{"model":"demo","max_tokens":1,"messages":[{",".join(messages)}]}}'.encode()
            got = await here.forwarded(CHAT, body)
            assert got["messages"] == json.loads(body)["messages"]
            ids = got["kv_transfer_params"]["prompt_token_ids"]
            assert ids == await here.tokenized(body)


@pytest.mark.row("P4")
async def test_half_a_surrogate_pair_is_refused_as_the_replica_refuses_it() -> None:
    async with scene("demo") as here:
        for written in adversarial.LONE_SURROGATES:
            text = f'{{"model":"demo","prompt":{written}}}'.encode()
            assert await here.refused(TEXT, text) == [400, 400, 400], written
            user = f'{{"role":"user","content":{written}}}'
            chat = f'{{"model":"demo","messages":[{user}]}}'.encode()
            assert await here.refused(CHAT, chat) == [400, 400, 400], written
        assert not here.upstream.asked
