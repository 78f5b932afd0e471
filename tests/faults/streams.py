"""Recorded streams: what replicas sent, byte for byte, with all there is to cut.

    python -m tests.faults.streams      records them anew from the simulated replicas

Invariants:
- A recording is a whole answer, from its status line to the end that its framing has.
- Half of them are as vLLM's server writes them (a chunk for each event); the rest carry the same
  events as other servers and proxies frame them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h11
import uvloop

from tests.raw import CHAT, TEXT, Client, chunk, json_bytes, post
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet, load_tokenizer

FOLDER = Path(__file__).with_name("recordings")
_MESSAGES = [{"role": "user", "content": "héllo"}]
_CHAT = {"model": "demo", "messages": _MESSAGES, "stream": True, "max_tokens": 3}
_TEXT = {"model": "demo", "prompt": "once", "stream": True, "max_tokens": 3}
_USAGE = {"stream_options": {"include_usage": True}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, _CHAT),
    "chat-usage": (CHAT, _CHAT | _USAGE),
    "chat-one-token": (CHAT, _CHAT | {"max_tokens": 1}),
    "chat-two-choices": (CHAT, _CHAT | {"n": 2, "max_tokens": 1}),
    "chat-continuous-usage": (
        CHAT,
        _CHAT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ),
    "text": (TEXT, _TEXT),
    "text-usage": (TEXT, _TEXT | _USAGE),
    "text-one-token": (TEXT, _TEXT | {"max_tokens": 1}),
    "text-two-prompts": (TEXT, _TEXT | {"prompt": ["a", "b"], "max_tokens": 1}),
    "text-long-model": (TEXT, _TEXT | {"max_tokens": 2, "user": "somebody"}),
}


def _open_ended(head: bytes, payload: bytes) -> bytes:
    return head.replace(b"transfer-encoding: chunked", b"connection: close") + payload


def _one_chunk(head: bytes, payload: bytes) -> bytes:
    return head + chunk(payload) + chunk(b"")


def _small_chunks(head: bytes, payload: bytes) -> bytes:
    pieces = [payload[at : at + 61] for at in range(0, len(payload), 61)]
    return head + b"".join(map(chunk, pieces)) + chunk(b"")


def _trailers(head: bytes, payload: bytes) -> bytes:
    return head + chunk(payload) + b"0;end\r\nx-done: yes\r\n\r\n"


def _crlf(head: bytes, payload: bytes) -> bytes:
    return _open_ended(head, payload.replace(b"\n", b"\r\n"))


REFRAMED: dict[str, tuple[str, Callable[[bytes, bytes], bytes]]] = {
    "open-ended": ("chat", _open_ended),
    "open-ended-usage": ("text-usage", _open_ended),
    "open-ended-two-choices": ("chat-two-choices", _open_ended),
    "open-ended-crlf": ("text", _crlf),
    "one-chunk": ("chat", _one_chunk),
    "one-chunk-usage": ("chat-usage", _one_chunk),
    "small-chunks": ("chat", _small_chunks),
    "small-chunks-text": ("text", _small_chunks),
    "trailers": ("chat-one-token", _trailers),
    "trailers-text": ("text-one-token", _trailers),
}


@dataclass(frozen=True)
class Recorded:
    """path: what was asked for. data: the whole answer. payload: its events."""

    name: str
    path: str
    data: bytes
    payload: bytes


def payload_of(data: bytes) -> bytes:
    """What a whole answer carries."""
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(data)
    parser.receive_data(b"")
    payload = b""
    while not isinstance(event := parser.next_event(), h11.EndOfMessage):
        payload += bytes(event.data) if isinstance(event, h11.Data) else b""
    return payload


@cache
def recorded() -> list[Recorded]:
    """All of them."""
    found = []
    for file in sorted(FOLDER.glob("*.http")):
        path = ASKED[REFRAMED.get(file.stem, (file.stem,))[0]][0]
        data = file.read_bytes()
        found.append(Recorded(file.stem, path, data, payload_of(data)))
    return found


async def record() -> None:
    """Asks a simulated replica for each, and writes the files."""
    settings = SimulatorSettings()
    FOLDER.mkdir(exist_ok=True)
    async with SimulatedFleet(settings, load_tokenizer(settings)) as fleet:
        await fleet.start(1)
        port = int(fleet.replicas[0].url.rpartition(":")[2])
        for name, (path, body) in ASKED.items():
            client = await Client.connect(port)
            await client.send(post(path, json_bytes(body), "content-type: application/json\r\n"))
            (FOLDER / f"{name}.http").write_bytes(await client.through(b"\r\n0\r\n\r\n"))
            client.close()
    for name, (source, reframe) in REFRAMED.items():
        data = (FOLDER / f"{source}.http").read_bytes()
        head = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        (FOLDER / f"{name}.http").write_bytes(reframe(head, payload_of(data)))


if __name__ == "__main__":
    uvloop.run(record())
