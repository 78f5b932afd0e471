"""JSON of which only the text is known: a call's arguments, and the values in them."""

from collections.abc import Iterator, Sequence
from json import loads
from typing import Any, Final

from tokenlane.tokens.chat.call_arguments import FLOAT, INTEGER, LIST, OBJECT, STRING
from tokenlane.tokens.chat.holes import TESTS, Hole, Text, joined
from tokenlane.tokens.chat.residual import Unknown, base_of, made_of
from tokenlane.tokens.chat.template_json import to_json

# What is written of values that are false.
_EMPTY: Final = {INTEGER: "0", OBJECT: "{}", LIST: "[]"}


class Json(Hole):
    """A JSON value. kind: as in `tokenlane.tokens.chat.call_arguments`. text: what `tojson` writes
    of it."""

    __slots__ = ("kind", "tests", "text")

    def __init__(self, text: Text, kind: str = OBJECT) -> None:
        self.kind = kind
        self.tests = TESTS[kind]
        self.text = text

    def opened(self) -> dict[str, Any]:
        """Return the keys of an object, and a hole for each value that has a text. Raise
        Unknown."""
        asked, number = self.text.asked, self.text.number()
        if self.kind != OBJECT or base_of(number) != number:
            raise Unknown("what is within arguments")
        found: dict[str, Any] = {}
        for place, (key, kind) in enumerate(loads(asked.structure(number))):
            found[key] = kind
            if isinstance(kind, str):
                text = Text(asked, (made_of(number, "value", (str(place),)),))
                found[key] = text if kind == STRING else Json(text, kind)
        return found

    def printed(self) -> str | Text:
        """Return what is printed of it. Raise Unknown."""
        return self.text if self.kind in (INTEGER, FLOAT) else super().printed()

    def json(self) -> Text:
        """Return what `tojson` writes of it."""
        return self.text

    def __bool__(self) -> bool:
        if self.kind not in _EMPTY:
            raise Unknown("whether a number is zero")
        return not self.text == _EMPTY[self.kind]  # noqa: SIM201 - a hole answers no other comparison

    def __iter__(self) -> Iterator[str]:
        return iter(self.opened())

    def __len__(self) -> int:
        return len(self.opened())

    def __contains__(self, key: object) -> bool:
        return key in self.opened()


def json(value: Any) -> str | Text:
    """Return what `tojson` writes of any value. Raise Unknown."""
    try:
        return to_json(value)
    except TypeError:
        pass  # a hole is in it
    match value:
        case Hole():
            return value.json()
        case dict() if all(type(key) is str for key in value):
            pairs = [(f"{to_json(key)}: ", json(one)) for key, one in value.items()]
            return joined(["{", *_between(pairs), "}"])
        case Sequence():
            return joined(["[", *_between([(json(one),) for one in value]), "]"])
    raise Unknown("JSON of what is not known")


def _between(groups: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    for number, group in enumerate(groups):
        yield from (", ", *group) if number else group
