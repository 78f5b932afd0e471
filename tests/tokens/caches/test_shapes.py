"""The shape cache: what it gives is what the engines give, and it is bounded."""

import json
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tokens.models import folder_with, shared
from tests.vllm.prompts import TEXTS, TOOLS, chats
from tokenlane.errors import RequestError, Unrenderable
from tokenlane.protocols.bodies import (
    ChatFields,
    Conversation,
    Kind,
    MessagesFields,
    ResponsesFields,
)
from tokenlane.protocols.inspection import inspect
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.shapes import Name, Shape, ShapeCache, shape_of
from tokenlane.tokens.chat.residual import Residual, Unknown
from tokenlane.tokens.chat.template import Template
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.keys import options_digest
from tokenlane.tokens.tokenizer import Tokenizer

NONE = Budget(0, 0)
ROOM = Budget(1 << 20, 1 << 20)


def parsed(kind: Kind = Kind.CHAT, **fields: Any) -> Conversation:
    body = inspect(kind, json.dumps(fields).encode())
    assert isinstance(body, Conversation)
    return body


def asked(*messages: tuple[str, str], **fields: Any) -> Conversation:
    told = [{"role": role, "content": content} for role, content in messages]
    return parsed(messages=told, **fields)


def shape(request: Conversation) -> Shape | None:
    assert isinstance(request, ChatFields)
    return shape_of(options_digest(request), json.loads(bytes(request.messages)))


def of(name: Name, texts: list[str]) -> Shape:
    """The shape of messages of these roles and texts."""
    pairs = zip(name[1], texts, strict=True)
    return Shape(name, [{"role": role, "content": text} for role, text in pairs])


def text_of(cache: ShapeCache, one: Shape) -> str | None:
    residual = cache.residual(one)
    return None if residual is None else residual.filled(one.texts)


def outcome(tokenizer: Tokenizer, request: Conversation, shapes: ShapeCache | None) -> str:
    try:
        return tokenizer.chat_text(request, shapes)
    except (RequestError, Unrenderable) as problem:
        return repr(problem)


def other_texts(draw: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """The same conversation, with other texts where a message's content is one."""
    messages = [
        {**message, "content": draw.choice(TEXTS)}
        if isinstance(message.get("content"), str)
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


@pytest.mark.parametrize(
    ("chars", "at_once", "known"), [(400, True, True), (300, True, False), (400, False, False)]
)
def test_what_others_go_on_from_is_learned_at_once_unless_it_is_dear(
    chars: int, at_once: bool, known: bool
) -> None:
    tokenizer, cache = Tokenizer.load("m", demo_folder()), ShapeCache(ROOM)
    talk = asked(*[("user", "a" * chars), ("assistant", "b" * chars)] * 30)
    made = tokenizer.rendering(talk, cache, continues=at_once)
    assert (made.residual is not None) == known
    # What comes a second time is learned in any case.
    assert tokenizer.rendering(talk, cache).residual is not None


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("name", ["demo", "qwen3"])
def test_texts_are_those_without_it(name: str, fast: bool) -> None:
    folder = demo_folder() if name == "demo" else shared(name)
    tokenizer = Tokenizer.load(name, folder, fast=fast)
    shapes, none = ShapeCache(ROOM), ShapeCache(NONE)
    draw = random.Random(5)
    for body in chats():
        for one in (body, *[other_texts(draw, body) for _ in range(3)]):
            request = parsed(**one)
            expected = outcome(tokenizer, request, None)
            assert outcome(tokenizer, request, shapes) == expected
            assert outcome(tokenizer, request, none) == expected
    assert shapes.hits > 100
    assert none.hits == len(none) == none.size_bytes == 0


def test_a_shape_is_learned_from_its_second_conversation_on() -> None:
    tokenizer, cache = Tokenizer.load("demo", demo_folder()), ShapeCache(ROOM)
    for number, hits in enumerate((0, 0, 1, 2)):
        request = asked(("system", "be brief"), ("user", f"number {number}"))
        text = tokenizer.chat_text(request, cache)
        assert f"number {number}" in text
        assert (cache.hits, cache.misses) == (hits, number + 1 - hits)
    assert len(cache) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"tools": TOOLS},
        {"tools": TOOLS[:1]},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"reasoning_effort": "low"},
        {"documents": [{"title": "a", "text": "b"}]},
    ],
    ids=str,
)
def test_every_option_makes_another_shape(other: dict[str, Any]) -> None:
    plain, with_it = shape(asked(("user", "a"))), shape(asked(("user", "a"), **other))
    assert plain is not None
    assert with_it is not None
    assert plain.name != with_it.name


def test_roles_and_the_dialect_do_too() -> None:
    messages = [{"role": "user", "content": "a"}]
    told = [*messages, {"role": "assistant", "content": "b"}]
    names = {
        made.name
        for made in (
            *(
                shape_of(options_digest(request), messages)
                for request in (ChatFields(), MessagesFields(), ResponsesFields())
            ),
            shape_of(b"", told),
            shape_of(b"", told[::-1]),
        )
        if made is not None
    }
    assert len(names) == 5


def test_a_digest_is_of_all_tools_however_many_were_seen() -> None:
    lists = [b'[{"name":"f%d"}]' % at for at in range(40)]
    lists += [b'["%b%d"]' % (b"x" * size, at) for size in (9, 100_000, 200_000) for at in range(30)]
    made: dict[bytes, bytes] = {}
    for tools in lists * 3:
        digest = options_digest(ChatFields(tools=msgspec.Raw(tools)))
        assert made.setdefault(tools, digest) == digest
    made[b"documents"] = options_digest(ChatFields(documents=msgspec.Raw(lists[0])))
    made[b"Messages"] = options_digest(MessagesFields(tools=msgspec.Raw(lists[0])))
    assert len(set(made.values())) == len(made) == len(lists) + 2


def test_a_system_prompt_beside_the_messages_decides_no_shape() -> None:
    said = msgspec.Raw(b'"Be brief."')
    assert options_digest(MessagesFields(system=said)) == options_digest(MessagesFields())
    assert options_digest(ResponsesFields(instructions=said)) == options_digest(ResponsesFields())
    assert options_digest(MessagesFields(thinking=said)) != options_digest(MessagesFields())


@pytest.mark.parametrize(
    "messages",
    [
        None,
        "text",
        [],
        ["text"],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}],
            }
        ],
        [{"role": "user", "content": "a", "name": None}],
        [{"role": "critic", "content": "a"}],
        [{"role": "developer", "content": "a"}],
        [{"role": "system", "content": "x-anthropic-billing-header: 1\na"}],
        [{"role": "user", "content": "a"}] * 513,
    ],
    ids=str,
)
def test_what_is_more_than_roles_and_texts_has_none(messages: Any) -> None:
    assert shape_of(b"", messages) is None


def test_tools_that_only_another_dialect_may_leave_empty() -> None:
    """Learned from requests of the one, it must not be what the other gets."""
    tokenizer, cache = Tokenizer.load("demo", demo_folder()), ShapeCache(ROOM)
    messages = [{"role": "user", "content": "a"}]
    for _ in range(3):
        request = parsed(Kind.MESSAGES, messages=messages, tools=[], max_tokens=5)
        tokenizer.chat_text(request, cache)
    assert cache.hits > 0
    with pytest.raises(RequestError, match="tools"):
        tokenizer.chat_text(parsed(messages=messages, tools=[]), cache)


def test_a_template_that_asks_for_the_time_has_no_shapes(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, chat_template="{{ messages[0].content }}{{ strftime_now('%Y') }}"
    )
    tokenizer, cache = Tokenizer.load("demo", folder), ShapeCache(ROOM)
    for _ in range(3):
        tokenizer.chat_text(asked(("user", "a")), cache)
    assert len(cache) == 0


def test_what_differs_from_the_engines_is_not_kept() -> None:
    cache, one = ShapeCache(ROOM), of((b"", ("user",)), ["a"])
    for _ in range(3):
        cache.learn(one, "a", lambda *_: Residual(("b",)), hasty=False)
    assert text_of(cache, one) is None
    cache.learn(one, "a", lambda *_: Residual((0,)), hasty=False)
    assert text_of(cache, one) == "a"


def test_a_long_one_is_not_learned_in_haste() -> None:
    cache, texts = ShapeCache(ROOM), ["a"] * 200
    one = of((b"", ("user",) * 200), texts)
    for _ in range(10):
        cache.learn(one, "a" * 200, lambda *_: Residual(tuple(range(200))), hasty=True)
    assert text_of(cache, one) is None
    cache.learn(one, "a" * 200, lambda *_: Residual(tuple(range(200))), hasty=False)
    assert text_of(cache, one) == "a" * 200


def test_a_shape_is_tried_a_few_times_only() -> None:
    cache, one, made = ShapeCache(ROOM), of((b"", ("user",)), ["a"]), 0

    def unknown(*_: object) -> Residual:
        nonlocal made
        made += 1
        raise Unknown("a use of a text")

    for _ in range(20):
        cache.learn(one, "a", unknown, hasty=False)
    assert made == 4


@pytest.mark.parametrize(("added", "tries"), [(1_200, 1), (1_201, 0)])
def test_what_would_be_too_large_is_not_made(added: int, tries: int) -> None:
    cache, one, made = ShapeCache(Budget(5_000, 1_200)), of((b"", ("user",)), ["x" * 3_000]), 0

    def counted(*_: object) -> Residual:
        nonlocal made
        made += 1
        return Residual(("y", 0))

    for _ in range(2):
        cache.learn(one, "y" * added + one.texts[0], counted, hasty=False)
    assert made == tries


def test_it_holds_no_more_than_its_budget() -> None:
    cache = ShapeCache(Budget(1_500, 1_200))
    for number in range(10):
        one = of((b"%d" % number, ("user",)), ["x" * 100])
        for _ in range(2):
            cache.learn(one, "x" * 100, lambda _, texts: Residual((texts[0],)), hasty=False)
        assert text_of(cache, one) == "x" * 100
        assert cache.size_bytes <= 1_500
    assert cache.evictions == 7
    assert text_of(cache, of((b"0", ("user",)), ["x"])) is None
    large = of((b"large", ("user",)), ["x" * 3_000])
    for _ in range(2):
        cache.learn(large, "x" * 3_000, lambda _, texts: Residual((texts[0],)), hasty=False)
    assert text_of(cache, large) is None


def test_the_one_used_last_stays() -> None:
    cache = ShapeCache(Budget(700, 700))
    shapes = [of((b"%d" % number, ("user",)), ["x"]) for number in range(3)]
    for one in shapes[:2] * 2:
        cache.learn(one, "x", lambda *_: Residual((0,)), hasty=False)
    assert text_of(cache, shapes[0]) == "x"
    cache.learn(shapes[2], "x", lambda *_: Residual((0,)), hasty=False)
    assert text_of(cache, shapes[0]) == "x"
    assert text_of(cache, shapes[1]) is None


def test_threads_share_one() -> None:
    template = Template("{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}")
    cache, wrong = ShapeCache(Budget(5_000, 5_000)), []

    def render(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(500):
            roles = tuple(draw.choices(("user", "assistant"), k=draw.randint(1, 4)))
            texts = [draw.choice(("a", " b", "c")) for _ in roles]
            one = of((b"", roles), texts)
            pairs = zip(roles, texts, strict=True)
            expected = "".join([f"{role}:{text.strip()};" for role, text in pairs])
            found = text_of(cache, one)
            if found is None:
                cache.learn(one, expected, partial(template.residual, variables={}), hasty=False)
            elif found != expected:
                wrong.append(one)

    threads = [threading.Thread(target=render, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.hits + cache.misses == 2_000
    assert cache.evictions
    assert cache.size_bytes == sum(one.size_bytes for one in cache._items.values()) <= 5_000
