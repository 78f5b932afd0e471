"""Conversations in the dialects of Anthropic's messages and OpenAI's responses: the next turn costs
what is new, as a chat's does."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.models import SHARED_NAMES
from tests.tokens.test_agent_turns import ARGUMENTS, Step, steps_of, talk
from tests.tokens.test_next_turn import TEXTS, damaged, read, service, system, texts
from tokenlane.protocols.bodies import Kind
from tokenlane.tokens.chat.conversation import arguments_of, reasoning_of

Talk = list[dict[str, Any]]
TOOL = {"name": "f", "description": 'its "messages", its "input"', "input_schema": {}}
FUNCTION = {"type": "function", "name": "f", "description": 'its "messages"', "parameters": {}}
# Templates that print a call as it is show which of its keys stands first.
NAMES = ["calls", "back", "printed", *SHARED_NAMES]
LATER = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(5))


def _texts(message: dict[str, Any]) -> list[str]:
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content or []
    return [part["text"] for part in parts]


def messages(said: Talk, fields: dict[str, Any]) -> dict[str, Any]:
    """A chat as a request in Anthropic's dialect. The last block may be cached, as agents ask for
    in each turn anew."""
    made: Talk = []
    for one in said[1:]:
        blocks: Talk = [{"type": "text", "text": text} for text in _texts(one)]
        if one["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": one["tool_call_id"]}
            made.append({"role": "user", "content": [{**result, "content": blocks}]})
            continue
        if (thought := reasoning_of(one)) is not None:
            blocks.insert(0, {"type": "thinking", "thinking": thought})
        for call in one.get("tool_calls", ()):
            function, use = call["function"], {"type": "tool_use", "id": call["id"]}
            given = arguments_of(function["arguments"])
            blocks.append({**use, "name": function["name"], "input": given})
        made.append({"role": one["role"], "content": blocks})
    if fields.pop("caching", False) and made[-1]["content"]:
        made[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {"messages": made, "system": said[0]["content"], "max_tokens": 9, **fields}


def responses(said: Talk, fields: dict[str, Any]) -> dict[str, Any]:
    """A chat as a request in the dialect of OpenAI's responses."""
    made: Talk = []
    for one in said[1:]:
        if one["role"] == "tool":
            output = "".join(_texts(one))
            made.append(
                {"type": "function_call_output", "call_id": one["tool_call_id"], "output": output}
            )
        elif one["role"] == "user":
            parts = [{"type": "input_text", "text": text} for text in _texts(one)]
            made.append({"role": "user", "content": parts})
        else:
            if (thought := reasoning_of(one)) is not None:
                summary = [{"type": "summary_text", "text": thought}]
                made.append({"type": "reasoning", "summary": summary})
            made += [
                {"type": "message", "role": "assistant", "content": text} for text in _texts(one)
            ]
            for call in one.get("tool_calls", ()):
                kind = {"type": "function_call", "call_id": call["id"]}
                made.append({**kind, **call["function"]})
    fields.pop("caching", None)
    return {"input": made, "instructions": said[0]["content"], **fields}


Write = Callable[[Talk, dict[str, Any]], dict[str, Any]]
DIALECTS: dict[Kind, Write] = {Kind.MESSAGES: messages, Kind.RESPONSES: responses}


def written(kind: Kind, said: Talk, style: int, **fields: Any) -> bytes:
    """A client's way to write a body: what is asked about in front or behind, with or without
    blanks."""
    made = DIALECTS[kind](said, {"tools": [TOOL if kind is Kind.MESSAGES else FUNCTION], **fields})
    if style & 1:
        made = dict(reversed(made.items()))
    return json.dumps(
        {"model": "m", **made},
        ensure_ascii=bool(style & 2),
        separators=(",", ":") if style & 4 else (", ", ": "),
        indent=2 if style & 8 else None,
    ).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("kind", DIALECTS, ids=str)
@pytest.mark.parametrize("style", [2, 5])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("name", ["calls", *(one for one in SHARED_NAMES if one == "qwen3")])
async def test_a_turn_is_known(name: str, caching: bool, style: int, kind: Kind) -> None:
    """In the first conversation, from its second body on; from the third where what is to be
    cached moves on."""
    own, cold, hits = service(name), service(name, 0), []
    hows = ["said", "two", "thought", "empty"] * 4
    steps = [(how, f"say {at}", f"so {at}", ARGUMENTS[0]) for at, how in enumerate(hows)]
    for said in talk(steps):
        raw = written(kind, said, style, caching=caching)
        assert await read(own, raw, kind=kind) == await read(cold, raw, kind=kind)
        hits.append(own.bodies.hits)
    own.close()
    cold.close()
    moves = caching and kind is Kind.MESSAGES
    assert hits == [max(0, at - moves) for at in range(len(hits))]


@pytest.mark.parametrize("kind", DIALECTS, ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(240)
@LATER
@given(
    steps_of(3),
    st.integers(0, 15),
    st.sampled_from([0, 0, *range(1, 9)]),
    st.integers(0, 2**20),
)
def test_nothing_tells_that_a_turn_was_known(
    name: str, kind: Kind, steps: list[Step], style: int, how: int, at: int
) -> None:
    async def told() -> None:
        warm, cold = service(name), service(name, 0)
        for word in ("one", "two"):
            for said in talk([(one, word, word, ARGUMENTS[0]) for one, *_ in steps]):
                await read(warm, written(kind, said, style), kind=kind)
        for said in talk(steps):
            asked = {"role": "user", "content": TEXTS[at % len(TEXTS)]}
            for one in (said, [*said, asked], [{**said[0], "content": "Else."}, *said[1:]]):
                raw = written(kind, one, style, caching=at % 2 == 0)
                last = b'[{"role": "user", "content": "last"}]'
                for body in (raw, damaged(raw, how, at, last) if how != 4 else raw):
                    seen = await read(warm, body, (style, at), kind=kind)
                    assert seen == await read(cold, body, kind=kind)
        warm.close()
        cold.close()

    asyncio.run(told())


@pytest.mark.parametrize("kind", DIALECTS, ids=str)
@pytest.mark.parametrize("name", ["demo", "calls", "back", "count first", "system again"])
@pytest.mark.timeout(240)
@LATER
@given(
    st.lists(
        st.tuples(texts, st.sampled_from([0, 0, *range(1, 9)]), st.integers(0, 2**20)),
        min_size=2,
        max_size=8,
    ),
    st.integers(0, 15),
    st.booleans(),
)
def test_nothing_tells_that_an_opening_was_known(
    name: str, kind: Kind, story: list[tuple[str, int, int]], style: int, as_text: bool
) -> None:
    """Of a short body: what is asked of one system prompt, in a list or as a text."""

    def asking(question: str, said: dict[str, str]) -> bytes:
        asked: Any = [said, {"role": "user", "content": question}]
        if as_text and kind is Kind.RESPONSES:
            return written(kind, asked[:1], style, input=question)
        return written(kind, asked, style)

    async def told() -> None:
        warm, cold = service(name, hop_s=10.0), service(name, 0)
        for at in range(5):
            raw = asking(f"question {at}", system())
            assert await read(warm, raw, kind=kind) == await read(cold, raw, kind=kind)
        # In front of the messages it is known.
        assert warm.bodies.hits == (2 if style & 1 and name != "system again" else 0), style
        for question, how, at in [("", 0, 0), *story]:
            raw = asking(question, system("." * (at % 3)))
            for body in (raw, damaged(raw, how, at, b"[]") if how != 4 else raw):
                seen = await read(warm, body, (style, at), kind=kind)
                assert seen == await read(cold, body, kind=kind)
        warm.close()
        cold.close()

    asyncio.run(told())


async def test_equal_bytes_are_another_prompt_in_another_dialect() -> None:
    own, cold = service("demo"), service("demo", 0)
    for at in range(4):
        said = talk([("answer", "say", "so", "")] * at)[-1]
        raw = json.dumps({"model": "m", "messages": said[1:], "system": said[0]["content"]})
        for kind in (Kind.CHAT, Kind.MESSAGES) * 2:
            seen = await read(own, raw.encode(), kind=kind)
            assert seen == await read(cold, raw.encode(), kind=kind)
    own.close()
    cold.close()


@pytest.mark.parametrize("kind", DIALECTS, ids=str)
async def test_another_system_prompt_is_another_prompt(kind: Kind) -> None:
    own, cold = service("demo"), service("demo", 0)
    for style in (0, 1):
        for word in ("one", "two", "one"):
            for said in talk([("answer", "say", "so", "")] * 3):
                other = [{**said[0], "content": word + said[0]["content"]}, *said[1:]]
                raw = written(kind, other, style)
                assert await read(own, raw, kind=kind) == await read(cold, raw, kind=kind)
    assert own.bodies.hits > 0
    own.close()
    cold.close()


async def test_a_system_message_among_the_others_is_read_as_a_whole() -> None:
    """The demo's template takes it where it stands; others want it in front."""
    own, cold = service("demo"), service("demo", 0)
    steps: list[Step] = [("answer", "say", "so", "")] * 4
    for place in (-1, 3):
        for said in talk(steps)[2:]:
            body = messages(said, {})
            body["messages"].insert(place, {"role": "system", "content": "now"})
            raw = json.dumps({"model": "m", **body}).encode()
            seen = await read(own, raw, kind=Kind.MESSAGES)
            assert seen == await read(cold, raw, kind=Kind.MESSAGES)
    own.close()
    cold.close()
