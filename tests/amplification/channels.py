"""Every way by which somebody's bytes come in, driven through the product's own entry."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from bench.loads import workload
from tests.amplification import seeds
from tests.amplification.meter import Peers
from tests.amplification.shapes import Shape
from tests.control.test_admin import opened
from tests.raw import CHAT, MESSAGES, RESPONSES, TEXT, chat, json_bytes, ok
from tests.support import Bench, demo_tokenizer, gateway
from tokenlane.channel.messages import FleetUpdate
from tokenlane.config.settings import ControlSettings, ServerSettings, Settings
from tokenlane.control.fleet_table import FleetTable
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.feed import pieces
from tokenlane.control.kv_events.sockets import MESSAGE_LIMIT_BYTES
from tokenlane.control.probes import BODY_LIMIT_BYTES, MODELS_LIMIT_BYTES, open_session, probe

SETTINGS = Settings(server=ServerSettings(head_deadline_s=0.5, body_deadline_s=0.5))
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EXPLAIN = (
    b"POST /explain HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
MIB = 1024 * 1024


@dataclass
class World:
    """A gateway with a client and a replica, and a control plane."""

    bench: Bench
    peers: Peers
    admin_port: int
    turns: "itertools.count[int]"

    async def ask(self, data: bytes) -> int:
        """A client's bytes."""
        await self.peers.send(self.bench.port, data)
        return len(data)

    async def posted(self, path: str, body: bytes) -> int:
        """A client's body; the replica's answer is small."""
        self.peers.answers = lambda _: ok()
        await self.peers.post(self.bench.port, path, body)
        return len(body)

    async def answered(self, path: str, data: bytes, *, stream: bool = False) -> int:
        """A replica's bytes, as the answer to a small request."""
        self.peers.answers = lambda _: data
        body = {"model": "demo", "stream": stream, "input": "hello", "prompt": "hello"}
        said = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
        await self.peers.post(self.bench.port, path, json_bytes({**body, **said}))
        self.peers.answers = lambda _: b""
        return len(data)

    async def plain(self, size: int) -> int:
        """A chat of so many bytes, whose text nobody sent before."""
        return await self.posted(CHAT, chat(workload.text(max(1, size - 64), next(self.turns))))

    async def probed(self, path: bytes, page: bytes) -> int:
        """A page of a replica: what the control plane and a worker make of it."""
        pages = {b"/v1/models": b'{"data":[]}', path: page}
        self.peers.answers = lambda path: ok(pages.get(path, b""), "connection: close\r\n")
        table = FleetTable([self.peers.url], ControlSettings())
        async with open_session(ControlSettings(probe_deadline_s=60.0)) as session:
            table.observe(0, await probe(session, self.peers.url))
        before, fleet = self.bench.gateway.fleet.state, table.state
        decoder = msgspec.msgpack.Decoder(FleetUpdate)
        update = decoder.decode(msgspec.msgpack.encode(FleetUpdate(fleet)))
        self.bench.gateway.update(update.state)
        self.bench.gateway.update(before)
        return len(page)

    async def published(self, payload: bytes) -> int:
        """A message of KV events, and what workers are told of it."""
        account = PublisherAccount(
            0, 0, ranks=1, model="demo", block_tokens=16, limit_blocks=1 << 20, can_replay=False
        )
        account.live(0, payload, 1.0)
        change = account.take()
        assert change is not None
        for piece in pieces(change):
            msgspec.msgpack.encode(piece)
        await asyncio.sleep(0)
        return len(payload)

    async def told(self, data: bytes) -> int:
        """A request to the admin port."""
        await self.peers.send(self.admin_port, data)
        return len(data)


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    """All there is, on the running loop."""
    peers = Peers()
    try:
        async with (
            opened() as plane,
            gateway(peers.url, settings=SETTINGS, tokenizer=demo_tokenizer()) as bench,
        ):
            port = int(plane.url.rpartition(":")[2])
            yield World(bench, peers, port, itertools.count())
    finally:
        peers.close()


@dataclass(frozen=True)
class Channel:
    """drive: sends an input; how much that was. words: what inputs are made of. limit_bytes: the
    longest that is looked at."""

    by: str
    drive: Callable[[World, bytes], Awaitable[int]]
    seeds: tuple[Shape, ...]
    words: Sequence[bytes]
    limit_bytes: int


def _body(path: str) -> Callable[[World, bytes], Awaitable[int]]:
    return lambda world, data: world.posted(path, data)


def _stream(path: str) -> Callable[[World, bytes], Awaitable[int]]:
    return lambda world, data: world.answered(path, STREAM + b"\r\n" + data, stream=True)


def _answer(path: str) -> Callable[[World, bytes], Awaitable[int]]:
    return lambda world, data: world.answered(path, ok(data))


CHANNELS = {
    "head": Channel("client", World.ask, seeds.HEADS, seeds.HEAD_WORDS, 60_000),
    "chunked body": Channel(
        "client", lambda w, d: w.ask(CHUNKED + d), seeds.CHUNKS, seeds.CHUNK_WORDS, MIB
    ),
    "chat body": Channel("client", _body(CHAT), seeds.CHATS, seeds.JSON_WORDS, 4 * MIB),
    "completion body": Channel("client", _body(TEXT), seeds.INPUTS, seeds.JSON_WORDS, 4 * MIB),
    "messages body": Channel("client", _body(MESSAGES), seeds.CHATS, seeds.JSON_WORDS, 4 * MIB),
    "responses body": Channel("client", _body(RESPONSES), seeds.INPUTS, seeds.JSON_WORDS, 4 * MIB),
    "tokenize body": Channel(
        "client", _body("/tokenize"), seeds.CHATS + seeds.INPUTS, seeds.JSON_WORDS, MIB
    ),
    "detokenize body": Channel(
        "client",
        _body("/detokenize"),
        seeds.IDS,
        seeds.JSON_WORDS,
        MIB,
    ),
    "text": Channel(
        "client",
        lambda w, d: w.posted(CHAT, chat(d.decode("latin-1"))),
        seeds.TEXTS,
        seeds.TEXT_WORDS,
        MIB,
    ),
    "answer's head": Channel(
        "replica", lambda w, d: w.answered(CHAT, d), seeds.ANSWER_HEADS, seeds.HEAD_WORDS, 60_000
    ),
    "answer's chunks": Channel(
        "replica",
        lambda w, d: w.answered(
            CHAT, STREAM + b"transfer-encoding: chunked\r\n\r\n" + d, stream=True
        ),
        seeds.CHUNKS,
        seeds.CHUNK_WORDS,
        MIB,
    ),
    "chat stream": Channel("replica", _stream(CHAT), seeds.EVENTS, seeds.EVENT_WORDS, MIB),
    "completion stream": Channel("replica", _stream(TEXT), seeds.EVENTS, seeds.EVENT_WORDS, MIB),
    "messages stream": Channel("replica", _stream(MESSAGES), seeds.EVENTS, seeds.EVENT_WORDS, MIB),
    "responses stream": Channel(
        "replica", _stream(RESPONSES), seeds.EVENTS, seeds.EVENT_WORDS, MIB
    ),
    "chat answer": Channel("replica", _answer(CHAT), seeds.ANSWERS, seeds.JSON_WORDS, MIB),
    "messages answer": Channel("replica", _answer(MESSAGES), seeds.ANSWERS, seeds.JSON_WORDS, MIB),
    "responses answer": Channel(
        "replica", _answer(RESPONSES), seeds.ANSWERS, seeds.JSON_WORDS, MIB
    ),
    "KV events": Channel("replica", World.published, seeds.KV, seeds.KV_WORDS, MESSAGE_LIMIT_BYTES),
    "/metrics": Channel(
        "replica",
        lambda w, d: w.probed(b"/metrics", d),
        seeds.PAGES,
        seeds.PAGE_WORDS,
        BODY_LIMIT_BYTES,
    ),
    "/v1/models": Channel(
        "replica",
        lambda w, d: w.probed(b"/v1/models", d),
        seeds.LISTS,
        seeds.JSON_WORDS,
        MODELS_LIMIT_BYTES,
    ),
    "admin request": Channel("operator", World.told, seeds.ADMIN, seeds.HEAD_WORDS, 8_000),
    "admin body": Channel(
        "operator", lambda w, d: w.told(EXPLAIN + d), seeds.CHUNKS, seeds.CHUNK_WORDS, MIB
    ),
}
