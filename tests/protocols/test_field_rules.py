"""What bodies may not ask of replicas: dropped, refused, capped; everything else as it came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raw import CHAT, Upstream, answering, chat, ok, post
from tests.support import gateway
from tokenlane.config.settings import RequestSettings, Settings
from tokenlane.errors import RequestError
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.parts import whole
from tokenlane.protocols.bodies import Kind
from tokenlane.protocols.field_rules import FieldRules

SETTINGS = RequestSettings(
    stripped_fields=("priority", "mm_processor_kwargs"),
    refused_fields=("chat_template", "prompt_embeds"),
    output_limit_tokens=100,
    choice_limit_count=4,
)
RULES = FieldRules(SETTINGS)
HUGE = 10**30


async def applied(raw: bytes, kind: Kind = Kind.CHAT) -> bytes:
    """What replicas get; raises RequestError for a body that cannot be held against the rules."""
    body = ReplicaBody.taken_apart(raw)
    if body.fields is None:
        raise RequestError(400, "")
    body.change(RULES.changes(body.fields, kind))
    return whole(await body.text())


CHANGED = {
    "stripped": ('{"prompt":"","max_tokens":1,"priority":-5}', {"prompt": "", "max_tokens": 1}),
    "escaped": ('{"max_tokens":1,"prior\\u0069ty":-5}', {"max_tokens": 1}),
    "twice": ('{"n":1,"n":9,"max_tokens":1}', {"n": 4, "max_tokens": 1}),
    "n": ('{"n":1000000,"max_tokens":1}', {"n": 4, "max_tokens": 1}),
    "best_of": (f'{{"best_of":{HUGE},"max_tokens":1}}', {"best_of": 4, "max_tokens": 1}),
    "output": ('{"max_tokens":101}', {"max_tokens": 100}),
    "both": (
        '{"max_tokens":9,"max_completion_tokens":9999}',
        {"max_tokens": 9, "max_completion_tokens": 100},
    ),
    "null": ('{"max_tokens":null}', {"max_tokens": 100}),
    "text": ('{"max_tokens":"5000"}', {"max_tokens": 100}),
    "left out": ('{"messages":[]}', {"messages": [], "max_tokens": 100}),
}


@pytest.mark.row("P2")
@pytest.mark.parametrize(("raw", "made"), CHANGED.values(), ids=CHANGED)
async def test_changed(raw: str, made: dict[str, Any]) -> None:
    assert json.loads(await applied(raw.encode())) == made


@pytest.mark.row("P2")
@pytest.mark.parametrize(
    ("kind", "fields", "changed"),
    [  # a name that the endpoint does not know limits nothing; less than 1 is no limit
        (Kind.CHAT, {"messages": [], "max_output_tokens": 1}, {"max_tokens": 100}),
        (Kind.CHAT, {"messages": [], "max_completion_tokens": 1}, {}),
        (Kind.CHAT, {"messages": [], "max_completion_tokens": 0}, {"max_completion_tokens": 100}),
        (Kind.CHAT, {"messages": [], "max_tokens": -1}, {"max_tokens": 100}),
        (Kind.RESPONSES, {"input": "", "max_tokens": 1}, {"max_output_tokens": 100}),
        (Kind.RESPONSES, {"input": "", "max_output_tokens": 1}, {}),
        (Kind.RESPONSES, {"input": "", "max_output_tokens": 0}, {"max_output_tokens": 100}),
        (Kind.COMPLETION, {"prompt": "", "max_completion_tokens": 1}, {"max_tokens": 100}),
        (Kind.COMPLETION, {"prompt": "", "max_tokens": 0, "echo": True}, {}),
        (Kind.COMPLETION, {"prompt": "", "max_tokens": -1}, {"max_tokens": 100}),
        (Kind.MESSAGES, {"messages": [], "max_output_tokens": 1}, {"max_tokens": 100}),
        (Kind.MESSAGES, {"messages": [], "max_tokens": 0}, {"max_tokens": 100}),
        (Kind.CHAT, {"messages": [], "max_tokens": 1, "n": 0}, {}),
    ],
)
async def test_output_limit_by_endpoint(
    kind: Kind, fields: dict[str, Any], changed: dict[str, Any]
) -> None:
    assert json.loads(await applied(json.dumps(fields).encode(), kind)) == fields | changed


@pytest.mark.row("P2")
@pytest.mark.parametrize(
    "raw",
    [
        b' {"messages" : [] , "max_tokens":100 } ',
        b'{"input":"x"}',
        b'{"max_tokens":"5","n":4}',
        b'{"a":NaN}',
    ],
)
async def test_left_alone(raw: bytes) -> None:
    assert await applied(raw) == raw


@pytest.mark.row("P2")
@pytest.mark.parametrize("raw", ['{"chat_template":1}', '{"a":1,"prompt_emb\\u0065ds":null}'])
async def test_refused(raw: str) -> None:
    with pytest.raises(RequestError) as refused:
        await applied(raw.encode())
    assert refused.value.status == 400
    assert refused.value.param in SETTINGS.refused_fields


@pytest.mark.row("P2")
async def test_numbers_that_python_alone_reads_hide_nothing() -> None:
    raw = b'{"n":1e400,"top_p":NaN,"priority":3}'
    assert await applied(raw) == b'{"n":4,"top_p":NaN}'
    with pytest.raises(RequestError):
        await applied(b'{"seed":NaN,"chat_template":"x"}')


@pytest.mark.row("P2")
@given(st.binary() | st.text().map(str.encode) | st.integers().map(lambda n: b'{"n":%d}' % n))
async def test_any_bytes(raw: bytes) -> None:
    try:
        made = await applied(raw)
    except RequestError:
        return
    assert await applied(made) == made


@pytest.mark.row("P2")
async def test_over_the_wire() -> None:
    settings = Settings(requests=SETTINGS)
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings) as bench:
            for padding in ("", "x" * 10_000):  # on the loop, and beside it
                answer = await bench.ask(post(CHAT, chat(padding, n=50, priority=1)))
                assert answer.status == 200
                fields = json.loads(upstream.asked[-1].body)
                assert (fields["n"], fields["max_tokens"]) == (4, 100)
                assert "priority" not in fields
                answer = await bench.ask(post(CHAT, chat(padding, chat_template="{{x}}")))
                assert (answer.status, answer.error["param"]) == (400, "chat_template")
            for raw in (b"[1]", b"no json", b"[" * 100_000, b'{"n":9,"\\ud800":NaN}'):
                assert (await bench.ask(post(CHAT, raw))).status == 400
    assert len(upstream.asked) == 2
