"""What is said over a bad way: streams, whole answers, large bodies, errors and broken answers,
each known to the byte at both ends.

`hold` tells what clients did not get as the replica sent it, `received` what the replica did not
get as they sent it: nothing, if all is well.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.streams import recorded
from tests.raw import (
    CHAT,
    DONE,
    EVENTS,
    STREAM_HEAD,
    TEXT,
    Answer,
    Client,
    Peer,
    chat,
    chunk,
    json_bytes,
    ok,
    post,
)

_ERRORS = (b"400 Bad Request", b"404 Not Found", b"422 Unprocessable Entity")
_MODELS = json_bytes({"object": "list", "data": [{"id": "demo", "object": "model"}]})
_SENT = 3  # events of a stream that breaks off then


@dataclass(frozen=True)
class Talk:
    """A request and its answer. body: None where the gateway must answer by itself. raw: what the
    replica sends. status, payload: what the client must get; broken: the payload breaks off."""

    name: str
    path: str
    body: bytes
    raw: bytes | None
    status: int
    payload: bytes
    broken: bool = False

    def wrong(self, answer: Answer) -> str | None:
        """What is not as it was sent."""
        if answer.status != self.status:
            return f"{self.name}: {answer.status}, not {self.status}"
        if self.broken:
            came, mark, _ = answer.body.partition(b'data: {"error":')
            silent = DONE in answer.body or (answer.whole and not mark)
            return f"{self.name}: taken for whole" if silent or came != self.payload else None
        if not answer.whole:
            return f"{self.name}: it ends after {len(answer.body)} bytes"
        if self.raw is None:
            return None if answer.error["type"] else f"{self.name}: no error"
        return None if answer.body == self.payload else f"{self.name}: other bytes"


def talks(draw: random.Random, large_bytes: int) -> list[Talk]:
    """One of each kind, the recorded streams among them."""

    def text(size: int) -> str:
        return "".join(draw.choices('abc xyz\n"\\äß€日本😀', k=size))

    found = []
    for one in recorded():
        fields = {"model": "demo", "user": one.name, "stream": True}
        said = (
            {"prompt": "hi"}
            if one.path == TEXT
            else {"messages": [{"role": "user", "content": "hi"}]}
        )
        found.append(
            Talk(one.name, one.path, json_bytes(fields | said), one.data, 200, one.payload)
        )
    for size in (0, 1, large_bytes):
        name, body = f"whole-{size}", json.dumps({"text": text(size)}, ensure_ascii=False).encode()
        found.append(Talk(name, CHAT, chat("hi", user=name), ok(body), 200, body))
    for line in _ERRORS:
        name = f"error-{line[:3].decode()}"
        body = json_bytes({"error": {"message": text(99), "type": "x", "param": None, "code": 1}})
        raw = ok(body).replace(b"200 OK", line)
        found.append(Talk(name, CHAT, chat("hi", user=name), raw, int(line[:3]), body))
    for size in (1_000, large_bytes):
        name = f"asked-{size}"
        found.append(Talk(name, CHAT, chat(text(size), user=name), ok(b"{}"), 200, b"{}"))
    cut = STREAM_HEAD + b"".join(map(chunk, EVENTS[:_SENT]))
    payload = b"".join(EVENTS[:_SENT])
    broken = chat("hi", stream=True, user="broken")
    found.append(Talk("broken", CHAT, broken, cut, 200, payload, broken=True))
    found.append(Talk("no-json", CHAT, b'{"model": "demo", "messages": [', None, 400, b""))
    return found


def replica(known: list[Talk]) -> Callable[[Peer], Awaitable[None]]:
    """The script of a replica that answers these, and probes."""
    raw = {one.name: one for one in known if one.raw is not None}

    async def script(peer: Peer) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                asked = await peer.asked()
                if asked.line.startswith(b"GET"):
                    await peer.send(ok(_MODELS if b"/v1/models" in asked.line else b""))
                    continue
                talk = raw[json.loads(asked.body)["user"]]
                assert talk.raw is not None
                await peer.send(talk.raw)
                if talk.broken or talk.name.startswith("open-ended"):
                    peer.close()
                    return

    return script


async def hold(
    known: list[Talk], draw: random.Random, connect: Callable[[], Awaitable[Client]]
) -> list[str]:
    """All of them, at once, on connections of one or two talks. What went wrong."""
    left = draw.sample(known, len(known))
    wrong: list[str] = []

    async def some(of: list[Talk]) -> None:
        client = await connect()
        with contextlib.closing(client):
            for talk in of:
                try:
                    answer = await client.ask(post(talk.path, talk.body))
                except (TimeoutError, ConnectionError) as error:
                    wrong.append(f"{talk.name}: {error!r}")
                    return
                if what := talk.wrong(answer):
                    wrong.append(what)
                if talk.broken:
                    return

    async with asyncio.TaskGroup() as group:
        while left:
            count = draw.randint(1, 2)
            # What breaks off ends its connection: it comes last.
            group.create_task(some(sorted(left[:count], key=lambda one: one.broken)))
            del left[:count]
    return wrong


def received(known: list[Talk], bodies: list[bytes]) -> list[str]:
    """What the replica got otherwise than it was sent. bodies: of its POST requests."""
    sent = Counter(one.body for one in known if one.raw is not None)
    got = Counter(bodies)
    names = {one.body: one.name for one in known}
    return [
        *(f"{names[body]}: never arrived" for body in sent - got),
        *(f"{names.get(body, body[:200])}: not sent so" for body in got - sent),
    ]
