"""Conversations with calls of tools, and content in parts: the next turn costs what is new."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import many
from tests.tokens.models import SHARED_NAMES
from tests.tokens.test_next_turn import PAD, TEXTS, TOOLS, read, service, texts, written
from tokenlane.protocols.bodies import Kind

ARGUMENTS = [
    '{"path": "a.py", "line": 7}', "{}", "", "no JSON", "[1]", '{"a": {"b": [null, 1.5, "é\\n"]}}',
    '{"a": 1, "a": 2}', '{"x": "</tool_call><|im_end|>"}', '{"n": 1e999}', "{" * 9,
    '{"\\ud800": 1}',
]  # fmt: skip
# How an assistant's message goes: calls, and what its content is where it has none.
HOWS = [
    "said", "empty", "null", "absent", "two", "part", "answer", "answered in parts", "named",
    "thought", "thought for an answer", "two parts",
]  # fmt: skip
Step = tuple[str, str, str, str]


def step(number: int, how: str, one: str, other: str, arguments: str) -> list[dict[str, Any]]:
    """A step of an agent: what the model says and calls, and what the tools answer."""
    if how == "answer":
        return [{"role": "assistant", "content": one}, {"role": "user", "content": other}]
    if how == "part":
        return [
            {"role": "assistant", "content": [{"type": "text", "text": one}]},
            {"role": "user", "content": [{"type": "text", "text": other}]},
        ]
    if how == "two parts":
        return [
            {"role": "assistant", "content": [{"type": "text", "text": one}] * 2},
            {"role": "user", "content": [{"type": "text", "text": text} for text in (other, one)]},
        ]
    if how == "thought for an answer":
        asked = {"role": "user", "content": other, "name": one[:5]}
        return [{"role": "assistant", "content": one, "reasoning": other}, asked]
    calls = [
        {
            "id": f"call{number}.{at}",
            "type": "function",
            "function": {"name": f"f{one[:3]}", "arguments": arguments},
        }
        for at in range(2 if how == "two" else 1)
    ]
    said: dict[str, Any] = {"role": "assistant", "content": one, "refusal": None}
    match how:
        case "empty":
            said["content"] = ""
        case "null":
            said["content"] = None
        case "absent":
            del said["content"]
        case "thought":
            said["reasoning_content"] = other
    content = [{"type": "text", "text": other}] if how == "answered in parts" else other
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": content} for call in calls]
    if how == "named":
        answers = [{**answer, "name": "f"} for answer in answers]
    return [{**said, "tool_calls": calls}, *answers]


def steps_of(most: int) -> st.SearchStrategy[list[Step]]:
    """Some steps, so many at most."""
    drawn = st.tuples(st.sampled_from(HOWS), texts, texts, st.sampled_from(ARGUMENTS))
    return st.lists(drawn, min_size=1, max_size=most)


def talk(steps: list[Step]) -> list[list[dict[str, Any]]]:
    """A conversation as it grows."""
    said: list[dict[str, Any]] = [{"role": "system", "content": PAD}]
    said.append({"role": "user", "content": "do it"})
    grown = [list(said)]
    for number, (how, one, other, arguments) in enumerate(steps):
        said += step(number, how, one, other, arguments)
        grown.append(list(said))
    return grown


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "name", ["calls", "demo", *(one for one in SHARED_NAMES if one == "qwen3")]
)
async def test_a_step_of_an_agent_is_known(name: str, how: str) -> None:
    """By the third conversation of each length, whatever its texts."""
    own, cold, write = service(name), service(name, 0), written(0, {"tools": TOOLS})
    begun: list[bool] = []
    for number in range(3):
        steps = [(how, f"say {number} {at}", f"so {number} {at}", ARGUMENTS[0]) for at in range(4)]
        for messages in talk(steps):
            raw = write(messages)
            begun.append(own.begun(Kind.CHAT, raw) is not None)
            assert await read(own, raw) == await read(cold, raw)
    own.close()
    cold.close()
    assert begun[-5:] == [True] * 5
    # What takes longer than a hop is made in a thread, from the whole body.
    assert own.bodies.hits > 0


@pytest.mark.parametrize(
    "name", ["calls", "demo", "back", *(one for one in SHARED_NAMES if one == "qwen3")]
)
async def test_a_step_that_nobody_took_before_is_known(name: str) -> None:
    """In the first conversation, from its second body on."""
    own, cold, write = service(name), service(name, 0), written(0, {"tools": TOOLS})
    # A new question sends some templates back to the start, which is too dear for short messages.
    hows = [
        how for how in HOWS if how not in ("answer", "part", "two parts", "thought for an answer")
    ] * 4
    steps = [(how, f"say {at}", f"so {at}", ARGUMENTS[0]) for at, how in enumerate(hows)]
    hits = []
    for messages in talk(steps):
        raw = write(messages)
        assert await read(own, raw) == await read(cold, raw)
        hits.append(own.bodies.hits)
    own.close()
    cold.close()
    assert hits == list(range(len(hits)))


@pytest.mark.parametrize(
    "name", ["calls", "back", "each asked", "loop", "stripped and asked", *SHARED_NAMES]
)
@pytest.mark.timeout(240)
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=many(8))
@given(
    steps_of(4),
    st.integers(0, 31),
    st.booleans(),
)
def test_nothing_tells_that_an_agents_body_was_known(
    name: str, steps: list[Step], style: int, with_tools: bool
) -> None:
    write = written(style, {"tools": TOOLS} if with_tools else {})

    async def told() -> None:
        warm, cold = service(name), service(name, 0)
        for word in ("one", "two"):
            for messages in talk([(how, word, word, ARGUMENTS[0]) for how, *_ in steps]):
                await read(warm, write(messages))
        for messages in talk(steps):
            raw = write(messages)
            assert await read(warm, raw) == await read(cold, raw)
            longer = write([*messages, {"role": "user", "content": TEXTS[style % len(TEXTS)]}])
            assert await read(warm, longer, (style, len(raw))) == await read(cold, longer)
        warm.close()
        cold.close()

    asyncio.run(told())
