"""One run of a template: what it printed, and the messages that it reads.

Invariants:
- Messages are made when they are read, and once.
- What depends on how many messages there are, or on what stands at their end, the run notices
  (`looks_ahead`). A number that counts from the end depends on it where it is looked at, not where
  it is moved, or taken from another such number.
"""

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple, NoReturn

from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from tokenlane.tokens.chat.conversation import Message
from tokenlane.tokens.chat.holes import NUMBER_TESTS, Asked, Hole, Text, merged
from tokenlane.tokens.chat.json_holes import Json
from tokenlane.tokens.chat.residual import Checkpoint, Residual, Unknown

PLAIN: Final = (str, int, float, bool, type(None))


class EarlierRun(NamedTuple):
    """An earlier run. messages: how many of its messages, from the first on, are these, too; whole:
    all of them. may_begin: a loop over all of them may be run from its start."""

    residual: Residual
    messages: int
    whole: bool
    may_begin: bool = True


class Run:
    """One run of a template, for so many messages. shown: what it printed last. kept: how many
    parts before are an earlier run's. checkpoints: those it leaves, by the loop's number."""

    def __init__(
        self, count: int, variables: dict[str, Any], asked: Asked, known: EarlierRun | None
    ) -> None:
        self.count = count
        self.asked = asked
        self.known = known
        self.shown: list[Any] = []
        self.kept = 0
        self._before: tuple[str | int, ...] = ()
        self.checkpoints: dict[int, tuple[Checkpoint, ...]] = {}
        self.looks_ahead = False
        self._given = {
            id(value): name for name, value in variables.items() if isinstance(value, dict | list)
        }

    def parts(self) -> tuple[str | int, ...]:
        """Return what was printed so far."""
        before = self._before
        # What was printed last may go on with the string before it.
        self.resume(before[:-1] + merged([Text(self.asked, before[-1:]), *self.shown]))
        return self._before

    def resume(self, parts: tuple[str | int, ...]) -> None:
        """Go on where these parts were printed."""
        self._before, self.shown = parts, []

    def is_given(self, value: Any) -> bool:
        """Return whether it is a value that came with the messages."""
        return id(value) in self._given

    def frozen(self, value: Any, *, inner: bool = False) -> tuple[Any, ...]:
        """Return what is equal for values that a template takes for the same, and holds none of the
        texts. inner: it is within another value."""
        kind = type(value)
        if kind in PLAIN:
            return kind.__name__, value
        if id(value) in self._given:
            return "given", self._given[id(value)]
        match value:
            case Text(parts=parts):
                return "text", parts
            case Json(kind=name, text=Text(parts=parts)):
                return "JSON", name, parts
            case Namespace() if not inner:  # what is in others, nobody puts back
                return "namespace", self.frozen(attributes(value))
            case Messages() | Backwards():
                return kind.__name__, value.first
            case FromEnd(more=more):
                return "from end", more
            case Macro():
                return "macro", value._func.__code__  # noqa: SLF001 - two may have one name
            case dict():
                pairs = [(key, self.frozen(one, inner=True)) for key, one in value.items()]
                return "dict", tuple(pairs)
            case list() | tuple():
                return kind.__name__, tuple([self.frozen(one, inner=True) for one in value])
            case Undefined():
                return ("undefined",)
            case FunctionType() | type():
                return "function", value
        return "other", object()


class FromEnd(Hole):
    """A number that counts from the end: the number of all messages, and so many more."""

    __slots__ = ("_run", "more")
    tests = NUMBER_TESTS

    def __init__(self, run: Run, more: int) -> None:
        self._run = run
        self.more = more

    def looked_at(self) -> int:
        """Return the number."""
        self._run.looks_ahead = True
        return self._run.count + self.more

    __index__ = looked_at

    def __add__(self, other: Any) -> Any:
        if type(other) is int:
            return FromEnd(self._run, self.more + other)
        return self.looked_at() + _number(other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, FromEnd):
            return self.more - other.more
        return self + -_number(other)

    def printed(self) -> str:
        """Return what is printed of it."""
        return str(self)

    def json(self) -> str:
        """Return what `tojson` writes of it."""
        return str(self)


def _number(value: Any) -> Any:
    return value.looked_at() if isinstance(value, FromEnd) else value


def _looking(function: Callable[..., Any]) -> Callable[..., Any]:
    def looked(self: FromEnd, *others: Any) -> Any:
        return function(self.looked_at(), *map(_number, others))

    return looked


for _name in "eq floordiv ge gt le lt mod mul ne neg rfloordiv rmod rmul rsub truediv".split():
    setattr(FromEnd, f"__{_name}__", _looking(getattr(int, f"__{_name}__")))
for _name in "bool format hash int repr str".split():
    setattr(FromEnd, f"__{_name}__", _looking(getattr(int, f"__{_name}__")))


def attributes(space: Namespace) -> dict[str, Any]:
    """Return what a namespace holds."""
    held: dict[str, Any] = space._Namespace__attrs  # noqa: SLF001 - it says it in no other way
    return held


class _List(Sequence[Any]):
    """A list that is neither printed nor compared as a whole."""

    def __eq__(self, other: object) -> NoReturn:
        raise Unknown("a comparison of all messages")

    def __repr__(self) -> NoReturn:
        raise Unknown("all messages as they are")

    __hash__ = None  # type: ignore[assignment]  # as a list


class Messages(_List):
    """A conversation's messages from one on, each made when it is read."""

    def __init__(
        self, make: Callable[[int], Message], count: int, run: Run, first: int = 0
    ) -> None:
        self.first = first
        self.run = run
        self.size = count - first
        self._make = make

    def at(self, index: int) -> Message:
        """Return a message."""
        return self._make(self.first + index)

    @property
    def length(self) -> FromEnd:
        """How many there are."""
        return FromEnd(self.run, self.size - self.run.count)

    def __len__(self) -> int:
        self.run.looks_ahead = True
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0 or len(self) > 0

    def __iter__(self) -> Iterator[Message]:
        return map(self.at, range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and 0 <= key < self.size:
            return self.at(key)
        if not isinstance(key, int | slice):
            raise Unknown("a key of a list")
        if key == slice(None, None, -1):
            return Backwards(self)
        if isinstance(key, slice) and key.stop is None and key.step is None:
            start = key.start or 0
            if 0 <= start <= self.size:
                return Messages(self._make, self.first + self.size, self.run, self.first + start)
        return list(self)[key]


class Backwards(_List):
    """Messages from the last one on."""

    def __init__(self, messages: Messages) -> None:
        self.first = messages.first
        self.length = messages.length
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, key: Any) -> Any:
        return list(self.messages)[::-1][key]
