"""Text that is no Unicode, in any field of any body: a request or a 400, never a 500, and no
tokenizer process dies of it."""

import asyncio
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.admission.test_auth import ALICE, AUTH, bearer
from tests.examples import many
from tests.gateway.test_explain import explainer
from tests.raw import CHAT, LIMIT_S, MESSAGES, RESPONSES, TEXT, Upstream, answering, ok, post, until
from tests.support import demo_tokenizer, gateway
from tokenlane.channel.messages import Explain
from tokenlane.config.settings import (
    ModelSettings,
    RequestSettings,
    RoutingSettings,
    Settings,
    TokenSettings,
)
from tokenlane.telemetry.metrics import families
from tokenlane.tokens.demo import demo_folder

_TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "k": ["v"]}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"b"}'}}
_PART = {"type": "text", "text": "hi", "extra": "x"}
_KWARGS = {"chat_template_kwargs": {"k": "v"}, "kv_transfer_params": {"p": "q"}}
_CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [_PART], "name": "n"},
        {"role": "assistant", "content": "a", "tool_calls": [_CALL], "reasoning": "r"},
        {"role": "tool", "content": "t", "tool_call_id": "c"},
        {"role": "user", "content": "hello"},
    ],
    "tools": [{"type": "function", "function": _TOOL}],
    "documents": [{"title": "t", "text": "d"}],
    "reasoning_effort": "low",
    **_KWARGS,
}
_PLAIN_CHAT = {"messages": [{"role": "user", "content": "hello"}]}
_ANTHROPIC = {
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "i", "name": "f", "input": {"k": "v"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "i", "content": "r"},
                {"type": "text", "text": "u"},
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "k": "v"}}],
    "thinking": {"type": "disabled"},
    "output_config": {"effort": "low"},
    **_KWARGS,
}
_RESPONSE = {
    "instructions": "i",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ],
    "tools": [{"type": "function", **_TOOL}],
    "reasoning": {"effort": "low"},
    **_KWARGS,
}
_ANY = {"model": "demo", "cache_salt": "s", "user": "u", "stop": ["x"]}
_TRUNCATED = {"truncate_prompt_tokens": 3, "truncation_side": "left"}
EXPLAIN = "explain"
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, _CHAT),
    (CHAT, _PLAIN_CHAT),
    (CHAT, _PLAIN_CHAT | _TRUNCATED),
    (CHAT, {"messages": "hello", "chat_template": "t"}),
    (TEXT, {"prompt": "hello", "suffix": None}),
    (TEXT, {"prompt": ["hello", "again"], "suffix": "s"}),
    (TEXT, {"prompt": ["hello", "again"]} | _TRUNCATED),
    (TEXT, {"prompt": [1, 2]}),
    (MESSAGES, _ANTHROPIC),
    (MESSAGES, {"messages": [{"role": "user", "content": "hello"}], "system": "s"}),
    ("/v1/messages/count_tokens", _ANTHROPIC),
    (RESPONSES, _RESPONSE),
    (RESPONSES, {"input": "hello", "instructions": "i"}),
    (RESPONSES, {"input": "hello", "previous_response_id": "r"}),
    ("/v1/embeddings", {"input": ["hello"]}),
    ("/v1/rerank", {"query": "q", "documents": ["d"]}),
    ("/v1/score", {"text_1": "q", "text_2": ["d"]}),
    ("/tokenize", {"prompt": "hello"}),
    ("/tokenize", {**_CHAT, "return_token_strs": True}),
    ("/tokenize", _PLAIN_CHAT),
    ("/detokenize", {"tokens": [1, 2]}),
    (EXPLAIN, _CHAT),
    (EXPLAIN, {"prompt": "hello"}),
    (EXPLAIN, {"input": "hello", "instructions": "i"}),
    (EXPLAIN, _ANTHROPIC),
]
_MARK = "Xq7mark"
# Cut, overlong, beyond the last character; halves of surrogate pairs, in UTF-8 and as escapes.
_BAD = (
    b"\xff", b"\xc3", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xed\xa0\x80", b"\xed\xb0\x80",
    b"\\ud800", b"\\udfff", b"a\\ud83d", b"\\ude00\\ud83d", b"\\ud83d\\u0041", b"\\uD800\\uDBFF",
    b"\\ud83d\xff", b"\\u00", b"\\x", b"\x00",
)  # fmt: skip
Way = tuple[str | int, ...]


def ways(value: Any, at: Way = ()) -> Iterator[Way]:
    """To each text in a value; one to a key ends in -1."""
    if isinstance(value, str):
        yield at
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield (*at, key, -1)
            yield from ways(inner, (*at, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ways(inner, (*at, place))


def marked(value: Any, way: Way) -> Any:
    """The same value, with the mark where the way leads."""
    value = copy.deepcopy(value)
    *before, last = way
    if last == -1:
        *before, last = before
        inner = value
        for one in before:
            inner = inner[one]
        inner[f"{last}{_MARK}"] = inner[last]
        return value
    inner = value
    for one in before:
        inner = inner[one]
    inner[last] += _MARK
    return value


Case = tuple[str, dict[str, Any], Way]
cases = st.sampled_from(
    [(path, _ANY | fields, way) for path, fields in BODIES for way in ways(_ANY | fields)]
)
hostile = st.lists(st.sampled_from(_BAD) | st.binary(max_size=3), min_size=1, max_size=3)


def written(case: Case, bad: list[bytes], words: int) -> bytes:
    """The body as it is sent: a text, so many words long, with these bytes in it."""
    body = json.dumps(marked(case[1], case[2]), ensure_ascii=False).encode()
    return body.replace(_MARK.encode(), b"word " * words + b"".join(bad), 1)


def rungs(rung: str) -> TokenSettings:
    """By which each job that is none of the short one's is done."""
    match rung:
        case "short":
            return TokenSettings(short_lane_s=1.0, thread_hop_s=1.0)
        case "local":
            return TokenSettings(thread_hop_s=0.0, queue_limit_jobs=0, fallback="wait")
        case "processes":
            folders = {"demo": str(demo_folder())}
            return TokenSettings(thread_hop_s=0.0, stall_budget_s=0.0, processes=1, folders=folders)
    return TokenSettings(thread_hop_s=0.0)


EDITS = Settings(
    auth=AUTH,
    models=ModelSettings(splits={"split": {"demo": 1.0}}),
    requests=RequestSettings(output_limit_tokens=10),
    routing=RoutingSettings(policy="prefix-hash"),
)


@pytest.mark.row("P1")
@pytest.mark.slow
@pytest.mark.parametrize("edits", [False, True], ids=["plain", "edits"])
@pytest.mark.parametrize("rung", ["none", "short", "threads", "local", "processes"])
async def test_any_bytes_in_any_field(
    rung: str, edits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """edits: with all that makes bodies anew on their way."""
    settings = replace(EDITS if edits else Settings(), tokens=rungs(rung))
    tokenizer = None if rung == "none" else demo_tokenizer()
    headers = bearer(ALICE) if edits else ""
    loop = asyncio.get_running_loop()
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, settings=settings, tokenizer=tokenizer) as bench,
    ):
        await until(lambda: bench.tokens.processes.ready_count == settings.tokens.processes)
        pids = {one.process and one.process.pid for one in bench.tokens.processes._children}
        client = await bench.client()

        async def refused(path: str, body: bytes) -> bool:
            """Whether it was, in the shape of the dialect; else it was answered."""
            if edits:
                body = body.replace(b'"demo', b'"split', 1)
            if path == EXPLAIN:
                answers: list[tuple[int, int, Any]] = []
                explainer(bench, answers).ask(Explain((), body, number=1))
                await until(lambda: answers)
                status = answers[0][1]
            else:
                answer = await client.ask(post(path, body, headers))
                status = answer.status
                if status == 400:
                    assert answer.refusal if path.startswith(MESSAGES) else answer.error
            assert status in (200, 400, 404), (path, body)
            return status != 200

        @search(max_examples=many(200), deadline=None, derandomize=True, database=None)
        @given(cases, hostile, st.sampled_from([0, 0, 100, 4000]))
        def searched(case: Case, bad: list[bytes], words: int) -> None:
            asking = refused(case[0], written(case, bad, words))
            asyncio.run_coroutine_threadsafe(asking, loop).result(LIMIT_S)

        # With one more in line than the queue takes, nothing is given to threads.
        bench.tokens.threads.queued_jobs += rung == "local"
        await asyncio.to_thread(searched)
        bench.tokens.threads.queued_jobs -= rung == "local"
        assert not caplog.records
        assert {status for status, _ in bench.outcomes()} >= {"200", "400"}
        now = {one.process and one.process.pid for one in bench.tokens.processes._children}
        assert now == pids
        if rung != "none":
            assert bench.metric(families.TOKENIZE, rung, "demo") > 0
