"""Values are counted without being made: never fewer than there are, and none in a text."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.errors import Unrenderable
from tokenlane.protocols import json_values
from tokenlane.protocols.prompt_fields import value

_TEXTS = st.text(st.sampled_from('a"\\,:{[é'), max_size=4)
_VALUES = st.recursive(
    st.none() | st.integers(0, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
)


def parts(given_value: Any) -> int:
    """Lists, objects and keys."""
    if isinstance(given_value, dict):
        return 1 + len(given_value) + sum(map(parts, given_value.values()))
    return 1 + sum(map(parts, given_value)) if isinstance(given_value, list) else 0


@given(_VALUES, st.integers(0, 20), st.booleans(), st.integers(1, 9))
def test_what_is_in_texts_does_not_count(
    drawn: Any, limit: int, ascii_only: bool, step_bytes: int
) -> None:
    """Wherever it is cut into steps."""
    raw = json.dumps(drawn, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_STEP_BYTES", step_bytes)
        assert json_values._within(raw, {b"[{:": limit}) == (parts(drawn) <= limit)


@given(st.binary(max_size=20) | st.text('"\\[', max_size=12).map(str.encode))
def test_any_bytes(raw: bytes) -> None:
    json_values._within(raw, {b"[{:": 0})


@given(_VALUES, st.integers(0, 20), st.integers(0, 3))
def test_behind_the_most_texts_never_fewer_count(drawn: Any, limit: int, texts: int) -> None:
    raw = json.dumps(drawn).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_STEP_BYTES", 4)
        patch.setattr(json_values, "_MOST_TEXTS", texts)
        assert not json_values._within(raw, {b"[{:": limit}) or parts(drawn) <= limit


MANY = {
    "scalars": b"[0" + b",0" * 2_100_000 + b"]",
    "objects": b"[{}" + b",{}" * 200_000 + b"]",
    "keys": b"{" + b",".join(b'"%d":0' % at for at in range(200_000)) + b"}",
    "behind a text": b'["a\\"",' + b"[]," * 200_000 + b"0]",
}


@pytest.mark.parametrize("raw", MANY.values(), ids=MANY)
def test_too_many_are_not_made(raw: bytes) -> None:
    assert not json_values.are_few(raw)
    with pytest.raises(Unrenderable, match="json"):
        value(msgspec.Raw(raw))


def test_long_texts_and_the_largest_contexts_are_made() -> None:
    text = json.dumps([{"role": "user", "content": '{"a": [1, 2, "b"]},' * 200_000}]).encode()
    ids = b"[" + b"12345," * 1_000_000 + b"1]"
    for raw in (text, ids):
        assert json_values.are_few(raw)
