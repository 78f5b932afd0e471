"""What must hold for any bytes that a client sends to the whole gateway, and for any that a replica
answers it with.

Invariants:
- Every answer is one: well framed, of a status that was foreseen, an error that is JSON.
- What a replica gets is one request, as h11 reads it.
- A replica's answer that is not whole is none that the client takes for whole.
- Nothing is left of a client that is gone: no task, no count, no memory.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

import h11

from tests.fuzz.scene import Asked, QuietLoop, Said, Scene
from tests.raw import (
    CHAT,
    EVENTS,
    MESSAGES,
    RESPONSES,
    TEXT,
    chat,
    get,
    json_bytes,
    ok,
    post,
    stream,
)
from tests.relay.named_streams import BODIES, STREAMS
from tests.support import demo_tokenizer, gateway, replicas
from tests.tokens.models import SHARED
from tokenlane.config.settings import (
    AdmissionSettings,
    AuthSettings,
    HealthSettings,
    Key,
    ModelSettings,
    RequestSettings,
    ServerSettings,
    Settings,
    Shadow,
    Tenant,
    TokenSettings,
)
from tokenlane.protocols.dialects import Dialect
from tokenlane.protocols.routes import FORWARDED
from tokenlane.tokens.tokenizer import Tokenizer

KEY = "fuzz"
_DIGEST = sha256(KEY.encode()).hexdigest()
_STATUSES = {200, 400, 401, 404, 405, 408, 413, 414, 415, 417, 429, 431, 501, 502, 503, 504, 505}
_FAILED = {502, 503, 504}
# `asked`: its ids are asked of replicas. `shadow`: gets copies.
SERVED = ("demo", "qwen3", "asked", "shadow")
_LIMIT = {"max_model_tokens": 900}
_ASK_DEADLINE_S = 0.1
_PLAIN = Settings(
    health=HealthSettings(failure_limit_count=1_000_000_000),
    tokens=TokenSettings(ask_deadline_s=_ASK_DEADLINE_S),
)
_ALL = Settings(
    health=_PLAIN.health,
    server=ServerSettings(
        cors_origins=("https://page",),
        trusted_peers=("127.0.0.0/8",),
        body_limit_bytes=1 << 20,
        bodies_limit_bytes=1 << 20,
    ),
    auth=AuthSettings(
        keys=(Key(digest=_DIGEST, tenant="t"),),
        tenants={"t": Tenant(concurrency_limit_count=2, queued_limit_tokens=1000)},
    ),
    admission=AdmissionSettings(
        concurrency_limit_count=4, queued_limit_tokens=10_000, long_prompt_tokens=100
    ),
    requests=RequestSettings(
        stripped_fields=("user",),
        refused_fields=("refused",),
        output_limit_tokens=100,
        choice_limit_count=2,
    ),
    models=ModelSettings(
        aliases={"one": "demo"},
        splits={"both": {"demo": 0.5, "qwen3": 0.5}},
        shadows={"demo": Shadow(to="shadow", ratio=1.0)},
    ),
    tokens=TokenSettings(ask_deadline_s=_ASK_DEADLINE_S, forward_tokens="all"),
)


@contextlib.contextmanager
def scene(*, everything: bool) -> Iterator[Scene]:
    """everything: with all settings that change what is done with a request; two replicas then."""
    tokenizers = {"demo": demo_tokenizer()}
    if (SHARED / "qwen3" / "tokenizer.json").is_file():
        tokenizers["qwen3"] = _qwen3()
    settings = _ALL if everything else _PLAIN
    loop = QuietLoop()
    made = Scene(loop)
    ready, over = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with made.replica() as url:
            state = replicas((url, url) if everything else (url,), models=SERVED, **_LIMIT)
            async with gateway(
                settings=settings, tokenizer=tokenizers, state=state, asks=True
            ) as made.bench:
                ready.set()
                await over.wait()

    living = loop.create_task(live())
    loop.run_until_complete(ready.wait())
    try:
        yield made
    finally:
        over.set()
        loop.run_until_complete(living)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@cache
def _qwen3() -> Tokenizer:
    return Tokenizer.load("qwen3", SHARED / "qwen3")


_OPEN = contextlib.ExitStack()


@cache
def _scene(*, everything: bool) -> Scene:
    return _OPEN.enter_context(scene(everything=everything))


def close() -> None:
    """Ends the scenes, and judges what is left of them."""
    _OPEN.close()
    _scene.cache_clear()


def _cut(data: bytes, places: bytes) -> list[bytes]:
    """In pieces: where, is said by up to four bytes; 0 is nowhere."""
    cuts = sorted({place * len(data) // 256 for place in places} - {0})
    return [data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])]


class Read(NamedTuple):
    """What h11 makes of an answer. state: "whole", "cut", or "wrong" where it is none."""

    state: str
    status: int
    body: bytes
    rest: bytes
    stream: bool


def read_answer(heard: bytes, *, over: bool, method: str = "POST") -> Read:
    """The first answer. over: no more will come, and cleanly so."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    length = [("content-length", "0")] if method == "POST" else []
    parser.send(h11.Request(method=method, target="/", headers=[("host", "x"), *length]))
    parser.send(h11.EndOfMessage())
    status, body, is_stream = 0, b"", False
    if heard:
        parser.receive_data(heard)
    try:
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA and over:
                over = False
                parser.receive_data(b"")
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return Read("cut", status, body, b"", is_stream)
            elif isinstance(event, h11.Response):
                status = event.status_code
                is_stream = b"event-stream" in dict(event.headers).get(b"content-type", b"")
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Read("whole", status, body, parser.trailing_data[0], is_stream)
    except h11.RemoteProtocolError as error:
        cut = "closed connection" in str(error)
        return Read("cut" if cut else "wrong", status, body, b"", is_stream)


# -- a client's bytes ------------------------------------------------------------------------------

# Without usage: other numbers than the tokenizer's would make the gateway trust it no more.
ANSWER = json_bytes({"id": "resp_1", "choices": []})
_STREAMS = {
    path: stream(*(event.replace(b"usage", b"use") for event in events))
    for path, events in {
        CHAT: EVENTS,
        TEXT: EVENTS,
        MESSAGES: STREAMS[Dialect.MESSAGES],
        RESPONSES: STREAMS[Dialect.RESPONSES],
    }.items()
}


def _answering(asked: Asked) -> Said:
    """As a healthy replica does. Raises ValueError where a body is not JSON; what is not UTF-8 in
    fields that the gateway does not read is the replica's to refuse."""
    request, body = asked
    path = request.target.decode("ascii").partition("?")[0]
    value: Any = {}
    if request.method == b"POST" and not path.startswith(f"{RESPONSES}/"):
        value = json.loads(body.decode("utf-8", "replace"))
    if path == "/tokenize":
        return Said([ok(json_bytes({"tokens": [1, 2, 3], "count": 3, "max_model_len": 900}))])
    if path in _STREAMS and value.get("stream") in (True, "true", 1):
        return Said([_STREAMS[path]])
    return Said([ok(ANSWER)])


def request(data: bytes) -> None:
    """Whatever a client sends, it gets answers or the end of its connection, and a replica gets
    requests. The first bytes say which gateway it is, how the client leaves, and where to cut."""
    how, places, data = (data[:1] or b"\0")[0], data[1:5], data[5:]
    scene = _scene(everything=bool(how & 1))
    scene.script = _answering
    heard = scene.play(_cut(data, places), resets=bool(how & 2))
    if b"HEAD" in data:
        return  # whose answers are framed otherwise
    rest = heard.data
    while rest:
        answer = read_answer(rest, over=heard.over and not heard.broken)
        if answer.state == "cut" and not answer.status:
            assert rest == b"HTTP/1.1 100 Continue\r\n\r\n"
            return
        assert answer.state == "whole", rest
        assert answer.status in _STATUSES, rest
        if answer.status != 200:
            assert "error" in json.loads(answer.body), rest
        rest = answer.rest


# -- a replica's bytes -----------------------------------------------------------------------------

ENDS = ("FIN", "RST", "silence")
QUESTIONS = (
    post(CHAT, chat(stream=True)),
    post(TEXT, json_bytes({"model": "demo", "prompt": "hi", "stream": True})),
    *(
        post(path, json_bytes({"model": "demo", "stream": True, **body}))
        for path, body in BODIES.items()
    ),
    post(CHAT, chat()),
    post(MESSAGES, json_bytes({"model": "demo", **BODIES[MESSAGES]})),
    post(RESPONSES, json_bytes({"model": "demo", **BODIES[RESPONSES]})),
    post(FORWARDED[0], json_bytes({"model": "demo", "input": "hi"})),
    get(f"{RESPONSES}/resp_1"),
    post(CHAT, chat(model="asked")),
    post("/tokenize", json_bytes({"model": "asked", "prompt": "hi"})),
    post(f"{MESSAGES}/count_tokens", json_bytes({"model": "asked", **BODIES[MESSAGES]})),
    # HTTP/1.0 knows no chunks: what it gets is framed by the connection's end.
    post(CHAT, chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"),
)
_AUTHORIZED = b"authorization: Bearer %b\r\nhost:" % KEY.encode()


def answer(data: bytes) -> None:
    """Whatever a replica answers, the client gets one answer: the replica's, byte for byte, or one
    that says what failed, or one that breaks off. The first bytes say which gateway it is, what
    was asked, how the replica ends, and where its bytes are cut."""
    head, places, data = data[:3].ljust(3, b"\0"), data[3:7], data[7:]
    scene = _scene(everything=bool(head[0] & 1))
    question = QUESTIONS[head[1] % len(QUESTIONS)].replace(b"host:", _AUTHORIZED, 1)
    ends = ENDS[head[2] % len(ENDS)]

    def script(asked: Asked) -> Said:
        # Nobody waits for a copy, so nobody's leaving ends it.
        copy = b"x-tokenlane-shadow" in dict(asked[0].headers)
        return Said(_cut(data, places), "FIN" if copy else ends)

    scene.script = script
    heard = scene.play([question], resets=bool(head[0] & 2))
    method = question.partition(b" ")[0].decode()
    came = read_answer(heard.data, over=heard.over and not heard.broken, method=method)
    if not heard.data:
        assert ends == "silence"
        return
    if not scene.asked:
        return  # answered without a replica
    sent = read_answer(data, over=ends == "FIN", method=method)
    if came.state != "whole":
        # Bad chunks go out as they came, up to where they are seen to be bad.
        assert came.state == "cut" or sent.state == "wrong", heard.data
        return
    assert not came.rest, heard.data
    if sent.state == "cut":
        assert came.status in _FAILED, heard.data
        assert "error" in json.loads(came.body)
    elif sent.state == "whole" and came.status == sent.status == 200 and b"asked" not in question:
        assert came.body == sent.body
