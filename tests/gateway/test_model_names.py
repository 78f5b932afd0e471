"""Names of the settings: what they mean, who shares them, and that a conversation stays."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.settings import ModelSettings, Settings, Shadow
from tokenlane.errors import ConfigError
from tokenlane.gateway.model_names import ModelNames
from tokenlane.protocols.bodies import ChatBody, Kind
from tokenlane.protocols.inspection import inspect

SPLIT = {"chat": {"old": 90.0, "new": 10.0}}
BOTH = frozenset({"old", "new"})


def named(**settings: Any) -> ModelNames:
    return ModelNames(ModelSettings(**settings), ("X-Session-Affinity",))


def chat(*messages: tuple[str, str]) -> ChatBody:
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    request = inspect(Kind.CHAT, json.dumps(body).encode())
    assert isinstance(request, ChatBody)
    return request


def test_an_alias_means_its_model() -> None:
    names = named(aliases={"gpt-4o": "qwen3"})
    assert "gpt-4o" in names
    assert "qwen3" not in names
    assert names.model("gpt-4o", 0, frozenset()) == "qwen3"
    assert names.usual("gpt-4o") == "qwen3"
    assert names.usual("another") == "another"


@given(st.integers(0, 2**64 - 1))
def test_the_same_conversation_has_the_same_model(key: int) -> None:
    names = named(aliases={"gpt-4o": "chat"}, splits=SPLIT)
    model = names.model("chat", key, BOTH)
    assert model in BOTH
    assert names.model("gpt-4o", key, BOTH) == model


def test_conversations_are_shared_by_weight() -> None:
    names = named(splits={"chat": {"old": 3.0, "new": 1.0, "none": 0.0}})
    drawn = Counter(names.model("chat", key * 7**20 % 2**64, BOTH) for key in range(4000))
    assert drawn.keys() == BOTH
    assert 0.22 < drawn["new"] / 4000 < 0.28


def test_a_change_of_weights_moves_no_more_than_it_has_to() -> None:
    before = named(splits=SPLIT)
    after = named(splits={"chat": {"old": 80.0, "new": 20.0}})
    keys = [key * 7**20 % 2**64 for key in range(2000)]
    moves = Counter(
        (before.model("chat", key, BOTH), after.model("chat", key, BOTH)) for key in keys
    )
    assert moves["new", "old"] == 0
    assert 0 < moves["old", "new"] < 300


def test_the_share_of_a_model_that_is_down_goes_to_the_others() -> None:
    names = named(splits=SPLIT)
    keys = range(0, 2**64, 2**58)
    assert {names.model("chat", key, frozenset({"new"})) for key in keys} == {"new"}
    # Where nobody is up there is no reason to move.
    assert [names.model("chat", key, ()) for key in keys] == [
        names.model("chat", key, BOTH) for key in keys
    ]


def test_a_name_can_be_that_of_one_of_its_models() -> None:
    names = named(splits={"old": {"old": 1.0, "new": 1.0}})
    assert {names.model("old", key, BOTH) for key in range(100)} == BOTH
    assert names.models() == {"old": ("old", "new")}


def test_what_a_conversation_is_told_by() -> None:
    names = named(splits=SPLIT)
    first = chat(("system", "You help."), ("user", "Hello"))
    later = chat(("system", "You do not."), ("user", "Hello"), ("assistant", "?"), ("user", "!"))
    other = chat(("system", "You help."), ("user", "Good bye"))
    assert names.key(first, (), b"1") == names.key(later, (), b"2")
    assert names.key(first, (), b"1") != names.key(other, (), b"1")
    assert names.key(first, (), b"1", "acme") != names.key(first, (), b"1", "labs")
    session = ((b"x-session-affinity", b"s1"),)
    assert names.key(first, session, b"1") == names.key(other, session, b"2")
    assert names.key(first, session, b"1") != names.key(first, session, b"1", "acme")
    talk = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "!"}]
    responses = [
        inspect(Kind.RESPONSES, json.dumps({"input": talk[:turns]}).encode()) for turns in (1, 2)
    ]
    assert names.key(responses[0], (), b"1") == names.key(responses[1], (), b"2")
    # Without either each request is by itself.
    assert names.key(None, (), b"1") != names.key(None, (), b"2")
    assert names.key(chat(("system", "x")), (), b"1") == names.key(None, (), b"1")


@pytest.mark.parametrize("messages", [b"null", b"3", b"[1]", b'[{"role":4}]', b'"x"', b"{}"])
def test_messages_that_are_none(messages: bytes) -> None:
    request = inspect(Kind.CHAT, b'{"messages":%b}' % messages)
    assert named(splits=SPLIT).key(request, (), b"1") == named().key(None, (), b"1")


def test_shadows_take_whole_conversations() -> None:
    names = named(shadows={"old": Shadow(to="new", ratio=0.25)})
    keys = [key * 7**20 % 2**64 for key in range(4000)]
    copied = [key for key in keys if names.shadow("old", key) == "new"]
    assert 0.22 < len(copied) / 4000 < 0.28
    assert all(names.shadow("old", key) for key in copied)
    assert names.shadow("new", copied[0]) is None
    assert all(
        named(shadows={"old": Shadow(to="new", ratio=1.0)}).shadow("old", key) for key in keys
    )


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ({"aliases": {"a": "b", "b": "c"}}, "aliases.a: must name a model or a split"),
        (
            {"aliases": {"a": "b"}, "splits": {"a": {"m": 1}}},
            "splits.a: cannot be an alias and a split",
        ),
        ({"splits": {"a": {}}}, "splits.a: needs a model with a weight above 0"),
        ({"splits": {"a": {"m": 0}}}, "splits.a: needs a model with a weight above 0"),
        ({"splits": {"a": {"b": 1}, "b": {"m": 1}}}, "splits.a: must be of models, and b is"),
        ({"aliases": {"n": "m"}, "splits": {"a": {"n": 1}}}, "splits.a: must be of models"),
        ({"shadows": {"m": {"to": "m", "ratio": 1}}}, "shadows.m: cannot be its own shadow"),
        (
            {"aliases": {"n": "x"}, "shadows": {"m": {"to": "n", "ratio": 1}}},
            "shadows.m: must go to a model",
        ),
        ({"shadows": {"m": {"to": "x", "ratio": 0}}}, "> 0"),
        ({"splits": {"a": {"m": -1}}}, ">= 0"),
    ],
)
def test_names_that_cannot_be_meant(models: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert({"models": models}, Settings)


def test_the_file_says_where(tmp_path: Any) -> None:
    from tokenlane.config.loading import load

    file = tmp_path / "c.yaml"
    file.write_text("models:\n  aliases: {a: b, b: c}\n")
    with pytest.raises(ConfigError, match=r"c.yaml:2: models.aliases.a: must name"):
        load(file)
