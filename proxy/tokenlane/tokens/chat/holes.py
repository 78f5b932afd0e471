"""Texts that are not known while a template is evaluated: holes, and what is asked of them.

Invariants:
- A hole is no string: it fails at whatever is done with it that is not written here.
- A question is answered by the text at hand, and becomes a guard: for another text with the same
  answer, the template goes the same way.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn

from tokenlane.tokens.chat.residual import Guard, Unknown, base_of, made_of, says, text_at
from tokenlane.tokens.chat.template_json import to_json

# What Jinja2's tests say of anything else.
_TESTS = dict.fromkeys(
    "undefined none mapping string number boolean integer true false".split(), False
) | dict.fromkeys(("defined", "iterable", "sequence"), True)
_PREDICATES = frozenset(("__bool__", "__contains__", "__eq__", "endswith", "startswith"))
_STRIPS = frozenset(("lstrip", "rstrip", "strip"))


class Hole:
    """A value that is not known. TESTS: what Jinja2's tests say of it."""

    __slots__ = ()
    TESTS: ClassVar[dict[str, bool]]

    def _unknown(self, *_: object) -> NoReturn:
        raise Unknown("a use of what is not known")

    __bool__ = __contains__ = __eq__ = __getitem__ = __hash__ = __iter__ = __len__ = _unknown
    __format__ = __repr__ = __str__ = _unknown


class Text(Hole):
    """Text with holes. parts: strings, and numbers of texts."""

    __slots__ = ("parts",)
    TESTS = _TESTS | {"string": True}

    def __init__(self, *parts: str | int) -> None:
        merged: list[str | int] = []
        run: list[str] = []
        for part in parts:
            if not isinstance(part, int):
                if part:
                    run.append(part)
                continue
            if run:
                merged.append("".join(run))
                run = []
            merged.append(part)
        if run:
            merged.append("".join(run))
        self.parts = tuple(merged)


class Json(Hole):
    """A JSON object. text: what `tojson` writes of it."""

    __slots__ = ("text",)
    TESTS = _TESTS | {"mapping": True}

    def __init__(self, text: Text) -> None:
        self.text = text


def joined(values: Sequence[Any]) -> str | Text:
    """Join strings and texts; other values as they are printed."""
    parts: list[str | int] = []
    for value in values:
        parts.extend(value.parts if isinstance(value, Text) else (str(value),))
    return whole(parts)


def whole(parts: Sequence[str | int]) -> str | Text:
    """Join strings and numbers of texts; a string where there are no texts."""
    text = Text(*parts)
    if any(isinstance(part, int) for part in text.parts):
        return text
    return "".join([str(part) for part in text.parts])


class Texts:
    """The texts at hand, by number, and what was asked of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._asked: dict[tuple[str, tuple[str, ...], bool], dict[int, None]] = {}

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All that was asked, and the answers."""
        return tuple([Guard(*asked, tuple(texts)) for asked, texts in self._asked.items()])

    def truth(self, value: Any) -> bool:
        """Return the truth of any value as a condition."""
        if isinstance(value, Json):
            return not self.ask(value.text, "__eq__", ["{}"])
        if not isinstance(value, Text):
            return bool(value)
        # A string among the parts is not empty.
        return any(isinstance(part, str) for part in value.parts) or bool(
            self.ask(value, "__bool__", [])
        )

    def ask(self, text: Text, name: str, args: list[Any]) -> Any:
        """Return what a method of str says of a text; what it leaves, for one that strips. Raise
        Unknown."""
        if name not in _PREDICATES and name not in _STRIPS:
            raise Unknown(f"the question {name}")
        if len(text.parts) != 1 or not isinstance(text.parts[0], int):
            raise Unknown("a question to more than one text")
        if not all(isinstance(arg, str) for arg in args):
            raise Unknown("a question that is no word")
        number, words = text.parts[0], tuple(args)
        if name in _STRIPS and base_of(number) == number:
            return Text(made_of(number, name, words))
        answer = says(text_at(self._texts, number), name, words)
        if name in _STRIPS and not answer:
            raise Unknown("a text that changes")
        self._asked.setdefault((name, words, answer), {})[number] = None
        return text if name in _STRIPS else answer

    def json(self, value: Any) -> str | Text:
        """Return what `tojson` writes of any value. Raise Unknown."""
        try:
            return to_json(value)
        except TypeError:
            pass  # a hole is in it
        match value:
            case Json(text=text):
                return text
            case Text(parts=(int(number),)):
                return Text(made_of(number, "tojson", ()))
            case dict() if all(type(key) is str for key in value):
                pairs = [(f"{to_json(key)}: ", self.json(one)) for key, one in value.items()]
                return joined(["{", *_between(pairs), "}"])
            case list() | tuple():
                return joined(["[", *_between([(self.json(one),) for one in value]), "]"])
        raise Unknown("JSON of what is not known")


def _between(groups: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    for number, group in enumerate(groups):
        yield from (", ", *group) if number else group
