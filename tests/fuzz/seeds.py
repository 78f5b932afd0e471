"""Where the search begins: inputs that mean something, from the tests' own data."""

import itertools

from tests.conformance.corpus import CHUNKED_HEAD, cases, chunked
from tests.faults.streams import recorded
from tests.fuzz.whole import ENDS, KEY, QUESTIONS
from tests.raw import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TEXT,
    chat,
    chunk,
    get,
    json_bytes,
    ok,
    post,
    stream,
)
from tests.relay.named_streams import ABORTED, BODIES, ERROR, FAILED, STREAMS
from tokenlane.protocols.dialects import Dialect

_CONFIGS = (
    b"server: {port: 8080, host: 127.0.0.1}\nbackends: [http://127.0.0.1:8000]\n",
    b"routing:\n  policy: affinity\n  alpha: 0.1\nhealth: {failure_limit_count: 3}\n",
    b"prices: {demo: {input_per_million: 1.5}}\ntokens: {folders: {demo: /x}, threads: 2}\n",
    b"a: &a [1, 2]\nb: *a\nc: 2001-12-14t21:59:43.10-05:00\nd: !!binary aGk=\ne: 0x1F\n",
    # What crashed once.
    b"a: 0000-00-00",
    b"a: 0x_",
    b"a: !!int x",
    b"a: !!timestamp x",
    b"[" * 100,
    b"backends: &a [*a]",
    b"server: &a {port: *a}",
)
_NO_CUTS = b"\x00\x40\x80\xc0"

_AUTHORIZED = f"authorization: Bearer {KEY}\r\n"
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "é"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", **_TOOL}]},
    {"role": "tool", "tool_call_id": "c", "content": "{}"},
    {"role": "user", "content": "go on"},
]
_BLOCKS = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
# What has a meaning to the gateway, by path; the model is added.
_FIELDS: tuple[tuple[str, dict[str, object]], ...] = (
    (CHAT, {"messages": _TALK, "tools": [_TOOL], "tool_choice": "auto", "stream": True}),
    (CHAT, {"messages": _TALK, "n": 3, "max_tokens": 999, "cache_salt": "s", "user": "u"}),
    (CHAT, {"messages": _TALK[:1], "chat_template_kwargs": {"enable_thinking": False}}),
    (CHAT, {"messages": _TALK, "add_generation_prompt": False, "continue_final_message": True}),
    (CHAT, {"messages": _TALK, "documents": [{"title": "t"}], "reasoning_effort": "low"}),
    (TEXT, {"prompt": ["one", "two"], "echo": True, "best_of": 3, "stream": True}),
    (TEXT, {"prompt": [[1, 2, 3], [4]], "add_special_tokens": False, "suffix": "x"}),
    (TEXT, {"prompt": [5, 6, 7], "truncate_prompt_tokens": 2, "refused": 1}),
    (MESSAGES, {"system": _BLOCKS, "messages": [{"role": "user", "content": _BLOCKS}]}),
    (f"{MESSAGES}/count_tokens", BODIES[MESSAGES]),
    (RESPONSES, {"input": [{"role": "user", "content": "Hi"}], "instructions": "i"}),
    (RESPONSES, {"input": "Hi", "previous_response_id": "resp_1", "background": True}),
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
    ("/tokenize", {"messages": _TALK, "tools": [_TOOL]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/v1/embeddings", {"input": "Hi"}),
    # What was logged as an error once.
    (CHAT, {"messages": [{"role": [], "content": "a"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": [], "text": "a"}]}]}),
    (CHAT, {"messages": _TALK[:2], "reasoning_effort": []}),
    (TEXT, {"suffix": "x"}),
)


def _requests() -> list[bytes]:
    models = ("qwen3", "one", "both", None)
    spoken = [
        post(path, json_bytes({"model": model} | fields), _AUTHORIZED)
        for number, (path, fields) in enumerate(_FIELDS)
        for model in ("demo", "asked", models[number % 4])
    ]
    others = [
        get("/v1/models", _AUTHORIZED),
        get("/health"),
        get(f"{RESPONSES}/resp_1", _AUTHORIZED),
        post(f"{RESPONSES}/resp_1/cancel", b"", _AUTHORIZED),
        post(CHAT, chat("Hi"), "expect: 100-continue\r\n" + _AUTHORIZED),
        chunked(chunk(chat("Hi")[:9]), chunk(chat("Hi")[9:]), chunk(b"")),
        f"OPTIONS {CHAT} HTTP/1.1\r\nhost: x\r\norigin: https://page\r\n\r\n".encode(),
        post(CHAT, chat(stream=True), _AUTHORIZED).replace(b"HTTP/1.1", b"HTTP/1.0"),
    ]
    return [*spoken, *others]


def _answers() -> list[bytes]:
    broken = {Dialect.MESSAGES: (ABORTED, ERROR), Dialect.RESPONSES: (FAILED, ERROR)}
    named = [
        stream(*events[:keep], *more)
        for dialect, events in STREAMS.items()
        for keep, more in ((9, ()), (3, ()), *((2, (one,)) for one in broken[dialect]))
    ]
    busy = ok(b'{"error":{"message":"m","type":"t","code":1}}').replace(b"200 OK", b"503 X")
    tokens = ok(json_bytes({"tokens": [1, 2, 3], "count": 3, "max_model_len": 900}))
    small = [one.data for one in recorded() if len(one.data) < 1500]
    plain = [ok(), busy, tokens, ok(b'{"id":"resp_1","usage":{"output_tokens":2}}')]
    return [*small, *named, *plain, b"HTTP/1.1 100 Continue\r\n\r\n" + ok()]


def seeds(name: str) -> list[bytes]:
    """Of one property; short ones, so that a mutation hits something."""
    short = [case.data for case in cases() if len(case.data) < 2000]
    if name == "head":
        return [data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for data in short]
    if name == "chunked":
        size = len(CHUNKED_HEAD)
        return [_NO_CUTS + data[size:] for data in short if data.startswith(CHUNKED_HEAD)]
    if name == "response":
        heads = [one.data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" for one in recorded()]
        behind = ok(b"\r\ncontent-length: 5\r\n\r\n")  # a length that is no part of the head
        return [*heads, ok(), ok(b"", "connection: close\r\n"), behind]
    if name == "events":
        return [_NO_CUTS + one.payload for one in recorded()]
    if name == "body":
        extra = {"stream": True, "n": 2, "cache_salt": "s", "tools": [{"type": "function"}]}
        texts = [json_bytes({"model": "demo", "prompt": prompt}) for prompt in ("a", ["a"], [1])]
        not_text = [
            chat("Hi").replace(b"Hi", bad) for bad in (b"\xff", b"\\ud800", b"\xed\xa0\x80")
        ]
        return [chat(), chat("é", **extra), chat(model=None), *texts, *not_text]
    if name == "yaml":
        return list(_CONFIGS)
    if name == "request":
        ours = [bytes((how, *_NO_CUTS)) + data for data in _requests() for how in (0, 1)]
        return [*ours, *(b"\2" + _NO_CUTS + data for data in short)]
    if name == "answer":
        # Every question with every answer would be the same answer many times.
        questions = itertools.cycle(range(len(QUESTIONS)))
        ends = itertools.cycle(range(len(ENDS)))
        return [
            bytes((how, next(questions), next(ends))) + _NO_CUTS + data
            for data in _answers()
            for how in range(4)
        ]
    return [bytes([at, *range(at, 256, 7)]) for at in range(0, 256, 16)]
