"""Mutations that know what they change: requests, answers, JSON, chunks and events. What atheris
changes by itself would seldom get past a length or a bracket.

Invariants:
- The first bytes, by which a property says what else it does, stay where they are.
"""

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

from tests.fuzz.whole import QUESTIONS, SERVED
from tests.raw import chunk
from tokenlane.protocols.routes import ROUTES

_LENGTH = re.compile(rb"(?im)^content-length: *\d+\r\n")
_CODING = b"transfer-encoding: chunked\r\n"
_LINES = (
    b"content-length: 5", b"transfer-encoding: chunked", b"expect: 100-continue", b"host: y",
    b"connection: close", b"connection: keep-alive, x", b"content-encoding: gzip", b"upgrade: x",
    b"authorization: Bearer fuzz", b"x-api-key: fuzz", b"x-request-id: a", b"origin: https://page",
    b"x-session-affinity: s", b"x-correlation-id: p", b"x-data-parallel-rank: 1", b"a: \xff",
    b"content-type: text/event-stream", b"content-type: application/json", b"trailer: x",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"x-forwarded-for: a",
)  # fmt: skip
_PATHS = [path.replace("{id}", "resp_1").encode() for path in ROUTES]
_STATUSES = (b"200 OK", b"204 X", b"304 X", b"100 X", b"404 X", b"400 X", b"500 X", b"503 X")
_NAMES = (
    "model", "messages", "prompt", "input", "stream", "role", "content", "type", "text", "tools",
    "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "best_of", "cache_salt",
    "tool_calls", "function", "arguments", "name", "id", "usage", "prompt_tokens", "choices",
    "completion_tokens", "finish_reason", "delta", "error", "tokens", "count", "max_model_len",
    "previous_response_id", "instructions", "system", "chat_template_kwargs", "stream_options",
    "include_usage", "chat_template", "documents", "image_url", "thinking", "suffix",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e308, float("nan"), "", "a", "é",
    "\ud800", "\x00", "<|im_end|>", "user", "assistant", "system", "tool", "text", [], {}, [[]],
    [1], ["a"], "abort", "stop", "{}", "x" * 300, *SERVED, "one", "both",
)  # fmt: skip


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in it."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        one = left.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        found.extend((one, key) for key in keys)
        left.extend(one[key] for key in keys if isinstance(one[key], dict | list))
    return found


def _value(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(_VALUES))  # nothing may come to hold itself


def _json(body: bytes, draw: random.Random) -> bytes:
    """A change to a value, or a name, where it is JSON."""
    try:
        value = json.loads(body)
        places = _places(value) if isinstance(value, dict | list) else []
    except (ValueError, RecursionError):
        return _raw(body, draw)
    if not places:
        return _raw(body, draw)
    for _ in range(draw.randint(1, 3)):
        where, key = draw.choice(places)
        how = draw.randrange(6)
        other, name = draw.choice(places)
        if isinstance(where, dict) and how < 2:
            where[draw.choice(_NAMES)] = _value(draw)
        elif isinstance(where, list) and how < 2:
            where.append(_value(draw))
        elif how == 2 and isinstance(where, dict):
            where[draw.choice(_NAMES)] = where.pop(key, None)
        elif how == 3:
            del where[key]
        elif how == 4 and isinstance(other, dict) and name in other:
            where[key] = json.loads(json.dumps(other[name]))
        else:
            where[key] = _value(draw)
        places = _places(value)
        if not places:
            break
    return json.dumps(value, ensure_ascii=draw.random() < 0.7).encode("utf-8", "surrogatepass")


def _raw(data: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    size = draw.randint(1, 8)
    piece = draw.choice((draw.randbytes(size), data[at : at + size] * 2, b"", b"\r\n", b"\\ud800"))
    return data[:at] + piece + data[at + draw.choice((0, 0, size)) :]


def _events(payload: bytes, draw: random.Random) -> bytes:
    """A change to the order of events, or to one of them."""
    events = payload.split(b"\n\n")
    at = draw.randrange(len(events))
    how = draw.randrange(6)
    if how == 0:
        del events[at]
    elif how == 1:
        events.insert(at, events[draw.randrange(len(events))])
    elif how == 2:
        draw.shuffle(events)
    else:
        head, mark, told = events[at].partition(b"data: ")
        events[at] = head + mark + _json(told, draw)
    return draw.choice((b"\n\n", b"\n\n", b"\n\n", b"\r\n\r\n")).join(events)


def _unchunked(body: bytes) -> bytes:
    payload = b""
    while match := re.match(rb"([0-9a-fA-F]{1,6})[^\n]*\n", body):
        size = int(match[1], 16)
        payload += body[match.end() : match.end() + size]
        body = body[match.end() + size + 2 :]
    return payload


def _chunked(payload: bytes, draw: random.Random) -> bytes:
    pieces = []
    while payload:
        size = draw.randint(1, draw.choice((3, 60, 4000)))
        pieces.append(chunk(payload[:size]))
        payload = payload[size:]
    return b"".join(pieces) + draw.choice(
        (b"0\r\n\r\n", b"0\r\n\r\n", b"0;a=b\r\nc: d\r\n\r\n", b"")
    )


def _head(lines: list[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(lines))
    how = draw.randrange(6)
    if at == 0 and lines[0].startswith(b"HTTP/"):
        lines[0] = b"HTTP/1.%d %b" % (draw.randint(0, 1), draw.choice(_STATUSES))
    elif at == 0:
        path = draw.choice(_PATHS)
        lines[0] = b"%b %b HTTP/1.%d" % (
            draw.choice((b"POST", b"POST", b"GET", b"HEAD", b"OPTIONS")), path, draw.random() < 0.9,
        )  # fmt: skip
    elif how < 3:
        lines.insert(at, draw.choice(_LINES))
    elif how == 3:
        del lines[at]
    else:
        lines[at] = _raw(lines[at], draw)


def message(data: bytes, draw: random.Random) -> bytes:
    """A request or an answer with a change or two, mostly framed as it should be."""
    head, mark, body = data.partition(b"\r\n\r\n")
    if not mark:
        return _raw(data, draw)
    head += b"\r\n"
    is_chunked = _CODING in head.lower()
    payload = _unchunked(body) if is_chunked else body
    for _ in range(draw.randint(1, 2)):
        how = draw.randrange(10)
        if how < 5:
            change: Callable[[bytes, random.Random], bytes] = (
                _events if b"\n\ndata:" in payload or b"event: " in payload else _json
            )
            payload = change(payload, draw)
        elif how < 8:
            lines = head[:-2].split(b"\r\n")
            _head(lines, draw)
            head = b"\r\n".join(lines) + b"\r\n"
        else:
            is_chunked = not is_chunked
    if draw.random() < 0.1:
        return _raw(head + b"\r\n" + body, draw)
    head = _LENGTH.sub(b"", head).replace(_CODING, b"")
    if is_chunked:
        made = head + _CODING + b"\r\n" + _chunked(payload, draw)
    else:
        made = head + b"content-length: %d\r\n\r\n" % len(payload) + payload
    if draw.random() < 0.1:
        made = made[: draw.randint(0, len(made))]
    elif draw.random() < 0.1:
        made += draw.choice((made, *QUESTIONS))
    return made


# How many bytes come before the message.
PREFIXES = {"request": 5, "answer": 7}


def mutated(name: str, data: bytes, seed: int) -> bytes:
    """Of one of PREFIXES' properties."""
    draw = random.Random(seed)
    size = PREFIXES[name]
    head = data[:size].ljust(size, b"\0")
    if draw.random() < 0.3:
        at = draw.randrange(size)
        head = head[:at] + draw.randbytes(1) + head[at + 1 :]
    return head + message(data[size:], draw)
