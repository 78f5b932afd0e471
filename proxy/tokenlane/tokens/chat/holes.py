"""Texts that are not known while a template runs: holes, and what is asked of them.

Invariants:
- A hole is no string: whatever is done with it that is not written here raises Unknown, or an error
  that ends the run.
- A question is answered by the text at hand, and becomes a guard: for another text with the same
  answer, the template goes the same way.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from tokenlane.tokens.chat.call_arguments import (
    FLOAT,
    INTEGER,
    LIST,
    OBJECT,
    STRING,
    structure,
)
from tokenlane.tokens.chat.residual import Guard, Unknown, base_of, made_of, says, text_at

# What Jinja2's tests say of anything else.
_OTHERS: Final = dict.fromkeys(
    "undefined none mapping string number boolean integer float true false callable".split(), False
) | dict.fromkeys(("defined", "iterable", "sequence"), True)
_NUMBERS: Final = _OTHERS | {"iterable": False, "number": True, "sequence": False}
TESTS: Final = {
    STRING: _OTHERS | {"string": True},
    INTEGER: _NUMBERS | {"integer": True},
    FLOAT: _NUMBERS | {"float": True},
    OBJECT: _OTHERS | {"mapping": True},
    LIST: _OTHERS,
}
NUMBER_TESTS: Final = TESTS[INTEGER]
# Methods of str: those that make a text of one, and those that say something of it.
_MAKING: Final = frozenset("lower lstrip replace rstrip strip upper".split())
_ASKING: Final = frozenset(("endswith", "startswith"))


class Hole:
    """A value that is not known. tests: what Jinja2's say of it."""

    __slots__ = ()
    tests: dict[str, bool]

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of it, as a template calls it. Raise Unknown."""
        raise Unknown(f"the part {name} of what is not known")

    def printed(self) -> "str | Text":
        """Return what is printed of it. Raise Unknown."""
        raise Unknown("what is printed of what is not known")

    def json(self) -> "str | Text":
        """Return what `tojson` writes of it. Raise Unknown."""
        raise Unknown("JSON of what is not known")


def _unknown(*_: object) -> NoReturn:
    raise Unknown("a use of what is not known")


for _name in "bool contains eq format getitem hash iter len repr str".split():
    setattr(Hole, f"__{_name}__", _unknown)


class Text(Hole):
    """Text with holes. parts: strings, and numbers of texts. asked: whom to ask about those."""

    __slots__ = ("asked", "parts")
    tests = TESTS[STRING]

    def __init__(self, asked: "Asked", parts: tuple[str | int, ...]) -> None:
        self.asked = asked
        self.parts = parts

    def __bool__(self) -> bool:
        # A string among the parts is not empty.
        if any(isinstance(part, str) for part in self.parts):
            return True
        return self.asked.says(self.number(), "__bool__", ())

    def __contains__(self, word: object) -> bool:
        if any(isinstance(part, str) and _words(word)[0] in part for part in self.parts):
            return True
        return self._says("__contains__", word)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str | Hole):
            return False
        return self._says("__eq__", other)

    __hash__ = Hole.__hash__

    def __add__(self, other: object) -> "Text":
        return self._sum(self, other)

    def __radd__(self, other: object) -> "Text":
        return self._sum(other, self)

    def method(self, name: str) -> Callable[..., Any]:
        """Return what is called for a method of str. Raise Unknown for others than are known
        here."""
        if name in _MAKING:
            return partial(self._made, name)
        if name in _ASKING:
            return partial(self._says, name)
        return self.split if name == "split" else super().method(name)

    def split(self, by: object) -> list["Text"]:
        """As str's, of a text without that word. Raise Unknown."""
        if not by or by in self:
            raise Unknown("a text that is split")
        return [self]

    def printed(self) -> "Text":
        """Return what is printed of it."""
        return self

    def json(self) -> "Text":
        """Return what `tojson` writes of it. Raise Unknown."""
        return Text(self.asked, (made_of(self.number(), "tojson", ()),))

    def _sum(self, *both: object) -> "Text":
        if not all(isinstance(one, str | Text) for one in both):
            raise Unknown("a sum")
        return Text(self.asked, merged(both))

    def _says(self, name: str, word: object) -> bool:
        return self.asked.says(self.number(), name, _words(word))

    def _made(self, name: str, *given: object) -> "Text":
        words = _words(*given)
        if len(self.parts) > 1 and name in ("lstrip", "rstrip", "strip"):
            first, *between, last = self.parts
            if name != "rstrip":
                first = self._stripped("lstrip", words, first, [*between, last][0])
            if name != "lstrip":
                last = self._stripped("rstrip", words, last, [first, *between][-1])
            return Text(self.asked, (first, *between, last))
        number = self.number()
        if base_of(number) == number:
            return Text(self.asked, (made_of(number, name, words),))
        if not self.asked.says(number, name, words):
            raise Unknown("a text that changes")
        return self

    def _stripped(
        self, name: str, words: tuple[str, ...], end: str | int, inner: str | int
    ) -> str | int:
        """Return what is left of the first or last part. inner: the next one, which is stripped,
        too, where nothing is left."""
        if isinstance(end, str):
            left: str = getattr(end, name)(*words)
            if left:
                return left
        elif isinstance(inner, str) and getattr(inner, name)(*words) == inner:
            return made_of(end, name, words)
        raise Unknown("more than one part is stripped")

    def number(self) -> int:
        """Return the number of the one text that it is. Raise Unknown."""
        if len(self.parts) != 1 or not isinstance(self.parts[0], int):
            raise Unknown("a question to more than one text")
        return self.parts[0]


class Length(Hole):
    """How long a text is: at least whether it is empty."""

    __slots__ = ("_text",)
    tests = NUMBER_TESTS

    def __init__(self, text: Text) -> None:
        self._text = text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return not self > other

    def __gt__(self, other: object) -> bool:
        if other != 0 or isinstance(other, Hole):
            raise Unknown("a length")
        return bool(self._text)

    __hash__ = Hole.__hash__


class Asked:
    """The texts at hand, by number, and what was asked of them. first: the number of the first of
    them. known: what was asked of those before it."""

    def __init__(self, texts: Sequence[str], first: int = 0, known: tuple[Guard, ...] = ()) -> None:
        self._texts = texts
        self._first = first
        self._known = {guard[:3]: guard.texts for guard in known}
        self._new: dict[tuple[str, tuple[str, ...], bool], dict[int, None]] = {}

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All that was asked, and the answers."""
        new = {asked: tuple(texts) for asked, texts in self._new.items()}
        known = [Guard(*asked, texts + new.pop(asked, ())) for asked, texts in self._known.items()]
        return (*known, *[Guard(*asked, texts) for asked, texts in new.items()])

    def says(self, number: int, name: str, words: tuple[str, ...]) -> bool:
        """Return what a predicate of str says of the text of this number. Raise Unknown where that
        text is not at hand, and was not asked."""
        if base_of(number) < self._first:
            for answer in (True, False):
                if number in self._known.get((name, words, answer), ()):
                    return answer
        answer = says(self._text(number), name, words)
        self._new.setdefault((name, words, answer), {})[number] = None
        return answer

    def structure(self, number: int) -> str:
        """Return the structure of the arguments that are the text of this number. Raise
        Unknown."""
        for asked in (self._known, self._new):
            for (name, words, answer), numbers in asked.items():
                if name == "structure" and answer and number in numbers:
                    return words[0]
        words = (structure(self._text(number)),)
        if not words[0]:
            raise Unknown("arguments that are not taken apart")
        self._new.setdefault(("structure", words, True), {})[number] = None
        return words[0]

    def _text(self, number: int) -> str:
        if base_of(number) < self._first:
            raise Unknown("a question to a text that is not at hand")
        return text_at(self._texts, number, self._first)


def shown(value: Any) -> str | Text:
    """Return a value as a template prints it. Raise Unknown."""
    return value.printed() if isinstance(value, Hole) else str(value)


def merged(values: Sequence[Any]) -> tuple[str | int, ...]:
    """Return the parts of values as a template prints them: strings next to each other are one."""
    found: list[str | int] = []
    run: list[str] = []
    for value in values:
        printed = shown(value)
        for part in printed.parts if isinstance(printed, Text) else (printed,):
            if not isinstance(part, int):
                run.append(part)
                continue
            found += [*_joined(run), part]
            run = []
    return (*found, *_joined(run))


def joined(values: Sequence[Any]) -> str | Text:
    """Return values as a template prints them; a string where there are no texts."""
    for value in values:
        if isinstance(value, Text):
            return Text(value.asked, merged(values))
    return "".join(map(str, values))


def _joined(run: list[str]) -> Sequence[str]:
    text = "".join(run)
    return (text,) if text else ()


def _words(*given: object) -> tuple[str, ...]:
    if not all(isinstance(word, str) for word in given):
        raise Unknown("a question that is no word")
    return given  # type: ignore[return-value]  # see above
