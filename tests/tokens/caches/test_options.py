"""What is remembered of tools and options is what a request says, whatever templates do to it."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.tokens.models import folder_with
from tokenlane.errors import RequestError
from tokenlane.protocols.bodies import ChatFields
from tokenlane.tokens.caches.lru import Budget
from tokenlane.tokens.caches.options import _LIMIT_BYTES, OptionsCache
from tokenlane.tokens.caches.shapes import ShapeCache
from tokenlane.tokens.chat.template import Template
from tokenlane.tokens.tokenizer import Tokenizer

SHOWN = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
CHANGES = (
    "{% set _ = tools.append(1) %}",
    "{% set _ = tools[0].update({'type': 'x'}) %}",
    "{% set _ = tools[0].function.pop('name') %}",
    "{% set tools = tools + [1] %}",
    "{% for tool in tools %}{% set tool = 1 %}{% endfor %}",
)


def request_of(description: str) -> ChatFields:
    tools = [{"type": "function", "function": {"name": "f", "description": description}}]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools}
    return msgspec.json.decode(json.dumps(body), type=ChatFields)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_template_cannot_change_what_is_remembered(
    tmp_path: Path, change: str, fast: bool
) -> None:
    template = "{% if messages[0].content == 'y' %}" + change + "{% endif %}" + SHOWN
    tokenizer = Tokenizer.load("m", folder_with(tmp_path, chat_template=template), fast=fast)
    request, shapes = request_of("d"), ShapeCache(Budget(1_000_000, 100_000))
    expected = tokenizer.chat_text(request)
    other = msgspec.structs.replace(
        request, messages=msgspec.Raw(b'[{"role":"user","content":"y"}]')
    )
    for _ in range(3):
        assert tokenizer.chat_text(request, shapes) == expected
        with suppress(RequestError):
            tokenizer.chat_text(other, shapes)
    assert tokenizer._options._known


def test_what_is_remembered_is_bounded() -> None:
    cache, template = OptionsCache(), Template("")
    for number in range(1000):
        request, name = request_of("d" * 1000), b"%d" % number
        cache.put(name, request, (template, {"number": number}))
        assert cache.get(name) == (template, {"number": number})
    kept = sum(len(request_of("d" * 1000).tools) for _ in cache._known)
    assert 0 < kept <= _LIMIT_BYTES
    cache.put(b"long", request_of("d" * _LIMIT_BYTES), (template, {}))
    assert cache.get(b"long") is None
