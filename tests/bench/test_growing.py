"""The agents of `bench growing`: what they send grows, is nobody else's, and names their tools."""

import json

import pytest

from bench.experiments.growing import AGENTS, KINDS, SENT, TOOLS, bodies


@pytest.mark.parametrize("name", sorted(KINDS))
def test_bodies_grow_and_name_their_tools(name: str) -> None:
    kind = KINDS[name]
    told = [json.loads(body) for body in bodies(4_000, 1, kind)]
    assert len(told) == AGENTS * SENT
    for before, after in zip(told, told[AGENTS:], strict=False):
        count = len(before["messages"])
        assert after["messages"][:count] == before["messages"]
        assert len(after["messages"]) > count
        assert after["tools"] == kind.tools
    assert len({json.dumps(one["messages"]) for one in told}) == len(told)


def test_a_coding_agents_tools_take_20_kb() -> None:
    tools = KINDS["the same, with 20 tools"].tools
    assert len(tools) == TOOLS
    assert 18_000 < len(json.dumps(tools)) < 25_000
