"""Explanations in one process: what they tell, and that they leave no trace."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.raw import until
from tests.support import Bench, demo_tokenizer, gateway, replicas
from tokenlane.channel.messages import Explain
from tokenlane.cli.admin_client import understood
from tokenlane.cli.verbs.explain import Explained, table
from tokenlane.config.settings import RoutingSettings, Settings
from tokenlane.errors import RequestError
from tokenlane.fleet_state import FleetState
from tokenlane.gateway.explain import MEANINGS, Explainer
from tokenlane.routing.candidates import LEFT_OUT_WORDS, LeftOut
from tokenlane.routing.decision import Reason

URLS = ("http://a:1", "http://b:2", "http://c:3")
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story. " * 60}]}


def explainer(bench: Bench, answers: list[tuple[int, int, Any]] | None = None) -> Explainer:
    made = bench.gateway
    return Explainer(
        made.fleet,
        made.router,
        made.planner,
        lambda number, status, body: (answers if answers is not None else []).append(
            (number, status, json.loads(body))
        ),
    )


async def told(bench: Bench, body: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> Any:
    return await explainer(bench).explain(Explain(tuple(headers), json.dumps(body).encode()))


def state(**second: Any) -> FleetState:
    fleet = replicas(URLS)
    changed = [fleet.replicas[0], *fleet.replicas[1:]]
    fields = {name: getattr(changed[1], name) for name in changed[1].__struct_fields__}
    changed[1] = type(changed[1])(**{**fields, **second})
    return FleetState(2, tuple(changed))


async def test_a_cold_prompt_and_one_whose_prefix_was_sent() -> None:
    async with gateway(*URLS, tokenizer=demo_tokenizer()) as bench:
        cold = await told(bench, CHAT)
        assert (cold["policy"], cold["reason"], cold["exact"]) == ("affinity", "cold", True)
        assert cold == await told(bench, CHAT) | {"rung": cold["rung"]}  # nothing was remembered
        assert cold["tokens"] // 16 == cold["blocks"]
        known = await bench.tokens.prompt("demo", _request(CHAT))
        assert known.prompt is not None
        bench.gateway.router.learn(2, known.prompt.blocks)
        warm = await told(bench, CHAT)
        assert (warm["replica"], warm["reason"]) == ("c:3", "prefix")
        assert [row["matched_tokens"] > 0 for row in warm["replicas"]] == [False, False, True]
        assert [row["chosen"] for row in warm["replicas"]] == [False, False, True]
        for row in warm["replicas"]:
            assert row["matched_tokens"] + row["uncached_tokens"] == warm["tokens"]
            assert row["cost"] == row["uncached_tokens"]


def _request(body: Any) -> Any:
    from tokenlane.protocols.bodies import Kind
    from tokenlane.protocols.inspection import inspect

    return inspect(Kind.CHAT, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"up": False}, "down"),
        ({"draining": True}, "draining"),
        ({"models": ("x",)}, "other-model"),
    ],
)
async def test_who_is_left_out_and_why(fields: dict[str, Any], reason: str) -> None:
    async with gateway(state=state(**fields), tokenizer=demo_tokenizer()) as bench:
        explained = await told(bench, CHAT)
        why = LEFT_OUT_WORDS[LeftOut(reason)]
        assert explained["left_out"] == [{"replica": "b:2", "reason": reason, "why": why}]
        assert f"b:2: left out, {why}" in table(understood(explained, Explained, ""))


async def test_a_completion_a_session_and_a_head() -> None:
    for policy, reason in (("session", "session"), ("prefix-hash", "hash")):
        settings = Settings(routing=RoutingSettings(policy=policy))
        async with gateway(*URLS, settings=settings, tokenizer=demo_tokenizer()) as bench:
            session = [(b"x-session-affinity", b"s")]
            completion = {"model": "demo", "prompt": "Once upon a time " * 20}
            explained = await told(bench, completion, session)
            assert (explained["reason"], explained["session"]) == (reason, policy == "session")
            chat = await told(bench, CHAT, session)
            assert bool(chat["head_tokens"]) == (policy == "prefix-hash")
            assert "demo: " in table(understood(chat, Explained, ""))


async def test_without_a_tokenizer_it_says_so() -> None:
    async with gateway(*URLS) as bench:
        explained = await told(bench, CHAT)
        assert (explained["exact"], explained["reason"]) == (False, "no-tokenizer")
        assert "about " in table(understood(explained, Explained, ""))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"model": "demo"}', 400),
        (b'{"model": "none", "messages": []}', 404),
        (b'{"model": "demo", "messages": 5}', 400),
        (b'{"model": "demo", "more": %b%b}' % (b"[" * 3000, b"]" * 3000), 400),
    ],
)
async def test_what_would_be_refused_is(body: bytes, status: int) -> None:
    async with gateway(*URLS, tokenizer=demo_tokenizer()) as bench:
        answers: list[tuple[int, int, Any]] = []
        explainer(bench, answers).ask(Explain((), body, number=7))
        await until(lambda: bool(answers))
        assert answers[0][:2] == (7, status)
        assert set(answers[0][2]["error"]) == {"message", "type", "param", "code"}


async def test_a_prompt_that_no_replica_has_room_for() -> None:
    fleet = replicas(URLS, max_model_tokens=100)
    async with gateway(state=fleet, tokenizer=demo_tokenizer()) as bench:
        with pytest.raises(RequestError, match="maximum context length is 100"):
            await told(bench, CHAT)


def test_every_reason_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Reason)
