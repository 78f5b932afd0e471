"""Raw request fields."""

import msgspec
import pytest

from tokenlane.errors import Unrenderable
from tokenlane.protocols.bodies import ABSENT, ChatFields
from tokenlane.protocols.prompt_fields import decoded, flag, truncation, value


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def test_fields_are_slices_of_the_body_and_unknown_ones_are_left_out() -> None:
    body = b'{"messages": [ 1 ], "temperature": 1, "tools": null}'
    fields = msgspec.json.decode(body, type=ChatFields)
    assert bytes(fields.messages) == b"[ 1 ]"
    assert bytes(fields.tools) == b"null"
    assert fields.documents is ABSENT
    assert (value(fields.messages), value(fields.tools), value(ABSENT)) == ([1], None, None)


@pytest.mark.parametrize("text", ["NaN", "1e999", "[" * 100_000])
def test_what_only_other_parsers_read_is_unknown(text: str) -> None:
    with pytest.raises(Unrenderable):
        value(raw(text))


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[1,{"a":', "},2]")])
def test_nesting_has_a_limit(opening: str, closing: str) -> None:
    levels = 32 // opening.replace("{", "[").count("[")
    most = opening * levels + '"[[{{"' + closing * levels
    assert value(raw(most)) == decoded(raw(most))
    assert value(raw(f"[{','.join(['[{}]'] * 200)}]")) == [[{}]] * 200
    for deeper in (f"[{most}]", f'[[],"",{{"a":1,"b":{most}}}]'):
        assert decoded(raw(deeper))
        with pytest.raises(Unrenderable, match="json"):
            value(raw(deeper))


def test_flags() -> None:
    assert flag(ABSENT, default=True) is True
    assert flag(raw("false"), default=True) is False
    for odd in ("null", "1", '"true"'):
        with pytest.raises(Unrenderable):
            flag(raw(odd), default=True)


def test_truncation() -> None:
    assert truncation(ABSENT, ABSENT) is None
    assert truncation(ABSENT, raw('"left"')) is None
    assert truncation(raw("5"), ABSENT) == (5, None)
    assert truncation(raw("5"), raw('"right"')) == (5, "right")
    for limit, side in (("-1", '"left"'), ("0", "null"), ('"5"', "null"), ("true", "null"),
                        ("5", '"up"')):  # fmt: skip
        with pytest.raises(Unrenderable):
            truncation(raw(limit), raw(side))
