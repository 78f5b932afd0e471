"""Where a run of a template takes up the loops in which an earlier run was.

A conversation grows at its end, and a template walks through it from the start: what a loop prints
for the messages before is the same if all that its body reads is. So a run leaves a checkpoint
where the last turn of such a loop begins; a run for a longer conversation goes on from there. Where
the last messages are others than before, it goes on from an earlier place, and leaves one, too. A
loop over the tools leaves one where it ended, and a longer conversation's run skips that loop.

Invariants:
- All that a loop's body may read from outside is compared, by value: it is found in the template's
  source (`number_loops`), and handed to the loop each time.
- What a body reads of messages behind its own, but for the next one, and how many there are, the
  list of messages notes: then there is no checkpoint.
- Only loops at the top of a template, which print straight to its output.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jinja2 import nodes, pass_context
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.utils import Namespace

from tokenlane.tokens.chat.conversation import Message
from tokenlane.tokens.chat.holes import Text
from tokenlane.tokens.chat.residual import Checkpoint, Unknown, part_before
from tokenlane.tokens.chat.runs import PLAIN, Backwards, FromEnd, Messages, Run, attributes

WALK: Final = "walk"
# Kept of each loop; and how many messages stand behind the place that is left besides.
_KEPT: Final = 3
_EARLIER: Final = 8
# Frozen values that no message has a part in.
_NO_MESSAGE: Final = frozenset(
    [*[kind.__name__ for kind in PLAIN], "given", "undefined", "macro", "function"]
)


class _Walked:
    """A loop. first: the number of its first message, of those that it is over; number: the loop's;
    names: the values that its body may read."""

    def __init__(self, run: Run, first: int, number: int, names: list[Any]) -> None:
        self.run = run
        self._first = first
        self._number = number
        self._names = names
        self._spaces = [one for one in names if isinstance(one, Namespace)]
        self._before = self._now()
        self._entry = run.parts()
        self._left: tuple[Checkpoint, ...] = ()
        run.looks_ahead = False

    def _now(self) -> tuple[Any, ...]:
        return tuple(map(self.run.frozen, self._names))

    def _known(self, most: int) -> tuple[Checkpoint, ...]:
        """Return where earlier runs were that came to this loop in the same way. most: the number
        of the last message that they had come to."""
        known = self.run.known
        left = () if known is None else known.residual.checkpoints.get(self._number, ())
        return tuple([one for one in left if one.first + one.turn <= most and self._alike(one)])

    def _alike(self, found: Checkpoint) -> bool:
        known = self.run.known
        assert known is not None
        if self._first != found.first or found.names != self._before:
            return False
        return part_before(known.residual.parts, found.entry) == self._entry

    def _leave(self, turn: int) -> None:
        """Leave a checkpoint, if all that was read so far is read again by longer ones."""
        spaces = [kept for kept in map(_kept, self._spaces) if kept is not None]
        if self.run.looks_ahead or len(spaces) < len(self._spaces):
            return
        left = Checkpoint(
            turn, self._first, self._before, _place(self._entry),
            _place(self.run.parts()), spaces,
        )  # fmt: skip
        before = [one for one in self._left if one.turn < turn]
        self.run.checkpoints[self._number] = self._left = (*before[1 - _KEPT :], left)

    def _restore(self, known: tuple[Checkpoint, ...]) -> None:
        """Go on from the last of these checkpoints."""
        run, found = self.run, known[-1]
        assert run.known is not None
        self._left = known
        run.resume(part_before(run.known.residual.parts, found.place))
        run.kept = max(run.kept, found.place[0] - 1)
        for space, kept in zip(self._spaces, found.spaces, strict=True):
            for name, value in kept.items():
                if isinstance(value, _FromEnd):
                    value = FromEnd(run, value.more)  # noqa: PLW2901 - as this run has it
                elif isinstance(value, tuple):
                    value = Text(run.asked, value)  # noqa: PLW2901 - as this run has it
                attributes(space)[name] = value


class _WalkedMessages(_Walked):
    def __init__(self, messages: Messages, number: int, names: list[Any]) -> None:
        super().__init__(messages.run, messages.first, number, names)
        self.messages = messages
        known = self.run.known
        self._earlier = -1 if known is None or known.whole else messages.size - 1 - _EARLIER

    def __len__(self) -> int:
        return len(self.messages)


class Walk(_WalkedMessages):
    """A loop from the first message on."""

    def __init__(self, messages: Messages, number: int, names: list[Any]) -> None:
        super().__init__(messages, number, names)
        known = self.run.known
        # The turns before look at the next message, too.
        found = () if known is None else self._known(known.messages - 1)
        self.start = found[-1].turn if found else 0
        if found:
            self._restore(found)
        elif known is not None and not known.may_begin:
            raise Unknown("a loop from its start")

    def __iter__(self) -> Iterator[Message]:
        for turn in range(self.start, self.messages.size):
            self.begins(turn)
            yield self.messages.at(turn)

    def items(self) -> Iterator[Message]:
        """Yield what it walks through, without a notice of a turn that begins."""
        return map(self.messages.at, range(self.start, self.messages.size))

    def begins(self, turn: int) -> None:
        """Notice that a turn begins."""
        if turn in (self._earlier, self.messages.size - 1):
            self._leave(turn)


class WalkBack(_WalkedMessages):
    """A loop from the last message on. It ends where what it comes to was walked through by an
    earlier run that began it as this one goes on."""

    def __iter__(self) -> Iterator[Message]:
        known = self.run.known
        found = () if known is None else self._known(known.messages)
        places = {one.turn - 1: at for at, one in enumerate(found, 1)}
        size, entry, begun = self.messages.size, _place(self._entry), list[int]()
        for turn in range(size - 1, -1, -1):
            if (turn in places or turn == self._earlier) and self._begins_here(entry):
                begun.append(turn + 1)
                if turn in places:
                    self._restore(found[: places[turn]])
                    break
            yield self.messages.at(turn)
        if _place(self.run.parts()) == entry:
            for turn in (*reversed(begun), size):
                self._leave(turn)

    def _begins_here(self, entry: tuple[int, int]) -> bool:
        """Return whether all is as it was where it began."""
        run = self.run
        return not run.looks_ahead and self._now() == self._before and _place(run.parts()) == entry


class WalkGiven(_Walked):
    """A loop over what comes with the messages, as tools do. It is skipped where all messages of
    the earlier run are in this one, or its body reads none: it would print the same."""

    def __init__(self, given: list[Any], run: Run, number: int, names: list[Any]) -> None:
        super().__init__(run, 0, number, [*names, given])
        known = run.known
        alike = known is not None and (
            known.whole or all(frozen[0] in _NO_MESSAGE for frozen in self._before)
        )
        found = self._known(len(given)) if alike else ()
        if found:
            self._restore(found)
            run.checkpoints[number] = found
        self.given = [] if found else given

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        yield from self.given
        self.ends()

    def ends(self) -> None:
        """Notice that the last turn has ended."""
        if self.given:
            self._leave(len(self.given))


class WalkGivenLoop(LoopContext):
    """`loop` in the turns of a walk through what is given."""

    def __init__(self, walk: WalkGiven, undefined: type[Undefined]) -> None:
        super().__init__(walk.given, undefined)
        self._walk = walk

    def __next__(self) -> tuple[Any, LoopContext]:
        try:
            return super().__next__()
        except StopIteration:
            self._walk.ends()
            raise


class WalkLoop(LoopContext):
    """`loop` in the turns of a walk."""

    def __init__(self, walk: Walk, undefined: type[Undefined]) -> None:
        super().__init__(walk, undefined)
        self._walk = walk
        self._iterator: Iterator[Any] = walk.items()
        self.index0 += walk.start
        if walk.start:
            self._current = walk.messages.at(walk.start - 1)

    def __next__(self) -> tuple[Any, LoopContext]:
        turn = super().__next__()
        self._walk.begins(self.index0)
        return turn


class WalkBackLoop(LoopContext):
    """`loop` in the turns of a walk back."""

    def __init__(self, walk: WalkBack, undefined: type[Undefined]) -> None:
        super().__init__(walk, undefined)
        self._walk = walk

    def part(self, name: str) -> Any:
        """Return an attribute."""
        run = self._walk.run
        if name in ("index", "index0"):
            return FromEnd(run, getattr(self, name) - run.count)
        run.looks_ahead = True
        return getattr(self, name)


def loop(walked: Any, undefined: type[Undefined], *more: Any) -> LoopContext:
    """Return `loop` of any loop, as Jinja2's."""
    match walked:
        case Walk():
            return WalkLoop(walked, undefined)
        case WalkBack():
            return WalkBackLoop(walked, undefined)
        case WalkGiven():
            return WalkGivenLoop(walked, undefined)
    return LoopContext(walked, undefined, *more)


@pass_context
def walk(context: Context, value: Any, number: int, names: list[Any]) -> Any:
    """Walk through messages, or what comes with them, where a loop is over those; the filter of
    `number_loops`."""
    match value:
        case Messages():
            return Walk(value, number, names)
        case Backwards(messages=forward):
            return WalkBack(forward, number, names)
        case list():
            run: Run = context.parent["messages"].run
            return WalkGiven(value, run, number, names) if run.is_given(value) else value
    return value


def number_loops(tree: nodes.Template) -> None:
    """Hand each loop at the top its number, and the values of what its body reads."""
    macros: dict[str, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        macros.setdefault(macro.name, set()).update(_names([macro]))
    for number, found in enumerate(_loops(tree.body)):
        names = _names(found.body)
        while more := set().union(*[macros[one] for one in names & macros.keys()]) - names:
            names |= more
        values = [nodes.Name(name, "load") for name in sorted(names - {"loop"})]
        args = [nodes.Const(number), nodes.List(values)]
        found.iter = nodes.Filter(found.iter, WALK, args, [], None, None)
        found.iter.set_lineno(found.lineno)
        assert found.environment is not None
        found.iter.set_environment(found.environment)


def _loops(body: list[nodes.Node]) -> Iterator[nodes.For]:
    for node in body:
        match node:
            case nodes.For(recursive=False, test=None, else_=[]):
                yield node
            case nodes.If():
                yield from _loops([*node.body, *node.elif_, *node.else_])


def _names(body: list[nodes.Node]) -> set[str]:
    names = {one.name for node in body for one in node.find_all(nodes.Name)}
    return names | {one.name for node in body for one in node.find_all(nodes.NSRef)}


class _FromEnd(NamedTuple):
    more: int


def _kept(space: Namespace) -> dict[str, Any] | None:
    """Return what a namespace holds, without the texts at hand; None where it holds other things
    than plain ones."""
    kept: dict[str, Any] = {}
    for name, value in attributes(space).items():
        if type(value) in PLAIN:
            kept[name] = value
        elif isinstance(value, Text):
            kept[name] = value.parts
        elif isinstance(value, FromEnd):
            kept[name] = _FromEnd(value.more)
        else:
            return None
    return kept


def _place(parts: Sequence[str | int]) -> tuple[int, int]:
    """Return where parts end: how many there are, and how long the last one is."""
    return len(parts), len(parts[-1]) if parts and isinstance(parts[-1], str) else 0
