"""JSON made to cost much for its bytes: no piece of work holds the loop (every test is judged by
tests/held.py), and others are served meanwhile."""

import asyncio
from typing import Any

import pytest

from tests.admission.test_auth import ALICE, AUTH, bearer
from tests.raw import CHAT, MESSAGES, TEXT, Upstream, answering, chat, ok, post
from tests.support import demo_tokenizer, gateway
from tokenlane.config.settings import ModelSettings, RequestSettings, RoutingSettings, Settings

SIZE_BYTES = 16_000_000
FIRST = b'{"role":"user","content":"a"},'
# With all that looks at bodies, or makes them anew.
EDITS = Settings(
    auth=AUTH,
    models=ModelSettings(splits={"split": {"demo": 1.0}}),
    routing=RoutingSettings(policy="prefix-hash"),
)


def listed(name: bytes, unit: bytes, first: bytes = b"") -> bytes:
    """A body that is one long list."""
    units = b",".join([unit] * (SIZE_BYTES // (len(unit) + 1)))
    return b'{"model":"demo","cache_salt":"s","%b":[%b%b]}' % (name, first, units)


HOSTILE = {
    "scalars": (CHAT, listed(b"messages", b"0")),
    "scalars behind a message": (CHAT, listed(b"messages", b"0", FIRST)),
    "objects": (CHAT, listed(b"messages", b'{"a":[]}', FIRST)),
    "messages": (MESSAGES, listed(b"messages", b'{"role":"user","content":"a"}')),
    "system messages": (CHAT, listed(b"messages", b'{"role":"system","content":"a"}')),
    "tools": (
        CHAT,
        listed(b"tools", b"{}").replace(b"{", b'{"messages":[' + FIRST[:-1] + b"],", 1),
    ),
    "limits": (CHAT, listed(b"truncate_prompt_tokens", b"0").replace(b"{", b'{"messages":[],', 1)),
    "texts": (TEXT, listed(b"prompt", b'""')),
    "ids": (TEXT, listed(b"prompt", b"1")),
    "keys": (CHAT, b'{"messages":[],"model":"demo"' + b',"a":0' * (SIZE_BYTES // 6) + b"}"),
    "model": (CHAT, b'{"messages":[],"model":"' + b"\\n" * (SIZE_BYTES // 2) + b'"}'),
    "salt": (CHAT, chat(cache_salt="é" * (SIZE_BYTES // 6))),
}


@pytest.mark.row("O11")
@pytest.mark.slow
@pytest.mark.parametrize("edits", [False, True], ids=["plain", "edits"])
@pytest.mark.parametrize("kind", HOSTILE)
async def test_no_body_holds_the_loop(kind: str, edits: bool) -> None:
    path, body = HOSTILE[kind]
    headers = ""
    if edits:
        body, headers = body.replace(b'"demo"', b'"split"', 1), bearer(ALICE)
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(
            upstream.url, settings=EDITS if edits else Settings(), tokenizer=demo_tokenizer()
        ) as bench,
    ):
        answer = await bench.ask(post(path, body, headers))
        assert answer.status in (200, 400, 404)
        assert (await bench.ask(post(CHAT, chat(), headers))).status == 200


@pytest.mark.row("O11")
@pytest.mark.slow
async def test_rules_refuse_what_is_too_much_to_look_through() -> None:
    settings = Settings(requests=RequestSettings(output_limit_tokens=10))
    async with Upstream(answering(ok())) as upstream:
        async with gateway(upstream.url, settings=settings) as bench:
            answer = await bench.ask(post(*HOSTILE["keys"]))
            assert (answer.status, answer.error["code"]) == (400, "fields")
            assert (await bench.ask(post(CHAT, chat()))).status == 200


@pytest.mark.row("O11")
@pytest.mark.slow
async def test_many_at_once_do_not_hold_it_together() -> None:
    async with (
        Upstream(answering(ok())) as upstream,
        gateway(upstream.url, tokenizer=demo_tokenizer()) as bench,
    ):
        hostile: list[Any] = [post(*HOSTILE["objects"])] * 6
        answers = await asyncio.gather(*map(bench.ask, hostile))
        assert {answer.status for answer in answers} == {200}
