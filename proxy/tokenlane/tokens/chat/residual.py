"""What remains of a chat template when everything but the messages' texts is fixed: text with
holes.

Invariants:
- A residual is used only where each of its guards says of the new texts what it said of those it
  was made with; then it is the template's rendering, by `tokenlane.tokens.chat.partial_evaluation`,
  and was compared with it once.
- Guards ask only what the template asks: the first that fails ends the use of a residual.
"""

from collections.abc import Sequence
from itertools import count
from sys import getsizeof
from typing import Any, Final, NamedTuple

import msgspec

from tokenlane.tokens.chat.call_arguments import structure, value_text
from tokenlane.tokens.chat.template_json import to_json

# Of these, whose memory is outside all accounts, 3 MB at most: 2 of residuals, which are counted in
# full although some may be in a cache, too, and the answers, which share their text.
_ANSWERS_KEPT: Final = 64
_RESIDUALS_LIMIT_BYTES: Final = 2_000_000
# Parts before the last ones in which the same strings are looked for.
_SEEN_AGAIN: Final = 64
_CHECKPOINT_BYTES: Final = 300
_NAME_BYTES: Final = 60
_SPACE_BYTES: Final = 250


# A number is of a text, or of what is made of one: the text's, and so many of these for what it is.
_STRIDE: Final = 1 << 20
# Words may come from requests.
_MOST_MADE: Final = 128


class Unknown(Exception):
    """The rendering follows from a text in a way that is not followed here."""


# How a text is made of another: by a method of str, with its words; by `tojson`; as the value at a
# place of a call's arguments.
_Way = tuple[str, tuple[str, ...]]
# Written without a lock: a way is known by its number before anybody gets the number.
_ways: dict[int, _Way] = {}
_numbers: dict[_Way, int] = {}
_next_numbers = count(1)


def made_of(number: int, by: str, words: tuple[str, ...]) -> int:
    """Return the number of what is made of a text. Raise Unknown."""
    if number >= _STRIDE:
        raise Unknown("what is made of what is made of a text")
    way = by, words
    if way not in _numbers:
        if len(_ways) >= _MOST_MADE:
            raise Unknown("too many ways to make a text of one")
        new = next(_next_numbers)
        _ways[new] = way
        _numbers.setdefault(way, new)
    return number + _STRIDE * _numbers[way]


def base_of(number: int) -> int:
    """Return the number of the text that this one is, or is made of."""
    return number % _STRIDE


def text_at(texts: Sequence[str], number: int, first: int = 0) -> str:
    """Return the text of that number, or what is made of it. first: the number of the first of
    `texts`."""
    if number < _STRIDE:
        return texts[number - first]
    by, words = _ways[number // _STRIDE]
    text = texts[number % _STRIDE - first]
    if by == "tojson":
        return to_json(text)
    return value_text(text, int(words[0])) if by == "value" else str(getattr(text, by)(*words))


class Guard(NamedTuple):
    """A condition on texts, or what is made of them. asks: a method of str, which returns `holds`
    for each of these (by number), given these words; one that makes a text leaves it unchanged; or
    `structure`, whether that is the arguments' (`tokenlane.tokens.chat.call_arguments`)."""

    asks: str
    words: tuple[str, ...]
    holds: bool
    texts: tuple[int, ...]


# Parts before a place, and characters of the last of them.
Place = tuple[int, int]


class Checkpoint(NamedTuple):
    """Where the last turn of a loop over messages begins; of a loop from the last message on, where
    it ended. turn: its number; first: the number of the first message; names: the values that the
    loop's body may read, frozen; entry: where the loop begins; place: where this is; spaces: what
    the namespaces among the values hold here."""

    turn: int
    first: int
    names: tuple[Any, ...]
    entry: Place
    place: Place
    spaces: list[dict[str, Any]]

    @property
    def size_bytes(self) -> int:
        """The memory it takes."""
        named = _NAME_BYTES * len(self.names) + _SPACE_BYTES * len(self.spaces)
        held = [tuple(space.values()) for space in self.spaces]
        return _CHECKPOINT_BYTES + named + _long_strings_bytes((self.names, *held))


def _long_strings_bytes(frozen: tuple[Any, ...]) -> int:
    size_bytes = 0
    for one in frozen:
        if isinstance(one, tuple):
            size_bytes += _long_strings_bytes(one)
        elif isinstance(one, str) and len(one) > _NAME_BYTES:
            size_bytes += getsizeof(one)
    return size_bytes


class Residual(msgspec.Struct):
    """parts: text, and the numbers of texts, or of what is made of them, that stand in between.
    checkpoints: the last ones, by the loop's number. size_bytes: the memory it takes, if it is
    known before."""

    parts: tuple[str | int, ...]
    guards: tuple[Guard, ...] = ()
    checkpoints: dict[int, tuple[Checkpoint, ...]] = {}
    size_bytes: int = 0

    def __post_init__(self) -> None:
        if self.size_bytes:
            return
        listed = len(self.parts) + sum([len(guard.texts) for guard in self.guards])
        strings = {part: getsizeof(part) for part in self.parts if isinstance(part, str)}
        left = [one.size_bytes for some in self.checkpoints.values() for one in some]
        kept = sum(left) + 120 * len(self.guards)
        kept += sum([len(word) for guard in self.guards for word in guard.words])
        self.size_bytes = sum(strings.values()) + 8 * listed + kept + 60

    def grown(
        self,
        parts: tuple[str | int, ...],
        guards: tuple[Guard, ...],
        checkpoints: dict[int, tuple[Checkpoint, ...]],
        kept: int,
    ) -> "Residual":
        """Return the residual of a longer conversation, of whose parts so many are of this one."""
        more = Residual(parts[kept:], guards[len(self.guards) :], checkpoints)
        last = {part: part for part in parts[max(0, kept - _SEEN_AGAIN) : kept]}
        once = [last.setdefault(part, part) for part in more.parts]
        size_bytes = self.size_bytes + more.size_bytes
        return Residual((*parts[:kept], *once), guards, checkpoints, size_bytes)

    def fits(self, texts: Sequence[str]) -> bool:
        """Return whether it is the template's rendering for messages of these texts."""
        for guard in self.guards:
            for number in guard.texts:
                if says(text_at(texts, number), guard.asks, guard.words) is not guard.holds:
                    return False
        return True

    def filled(self, texts: Sequence[str]) -> str:
        """Return the rendering, where it fits."""
        return "".join(
            [part if isinstance(part, str) else text_at(texts, part) for part in self.parts]
        )


def part_before(parts: tuple[str | int, ...], place: Place) -> tuple[str | int, ...]:
    """Return the parts before a place."""
    count, chars = place
    if not chars:
        return parts[:count]
    last = parts[count - 1]
    assert isinstance(last, str)
    return (*parts[: count - 1], last[:chars])


def guards_before(guards: tuple[Guard, ...], first: int) -> tuple[Guard, ...]:
    """Return the guards on texts before a number, as far as they are."""
    return tuple(
        [
            Guard(*guard[:3], tuple([one for one in guard.texts if base_of(one) < first]))
            for guard in guards
        ]
    )


class Continuation(NamedTuple):
    """The rest of a residual behind parts that another has, too. guards: those on texts that the
    other does not have."""

    parts: tuple[str | int, ...]
    guards: tuple[Guard, ...]


class Continuations:
    """`continuation` of residuals that stay the same objects from turn to turn: the last answers,
    by identity."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._known: dict[
            tuple[int, int, int, int, int], tuple[Residual, Residual, Continuation | None]
        ] = {}

    def of(
        self, old: Residual, new: Residual, part: int, within: int, known: int
    ) -> Continuation | None:
        """As `continuation`."""
        name = (id(old), id(new), part, within, known)
        found = self._known.get(name)
        if found is not None and found[0] is old and found[1] is new:
            return found[2]
        made = continuation(old, new, part, within, known)
        size_bytes = old.size_bytes + new.size_bytes
        if size_bytes > _RESIDUALS_LIMIT_BYTES:
            return made
        self._size_bytes += size_bytes
        if len(self._known) >= _ANSWERS_KEPT or self._size_bytes > _RESIDUALS_LIMIT_BYTES:
            self._known.clear()
            self._size_bytes = size_bytes
        self._known[name] = (old, new, made)
        return made


def continuation(
    old: Residual, new: Residual, part: int, within: int, known: int
) -> Continuation | None:
    """Return how `new` goes on behind its first `part` parts and `within` characters of the next
    one, where `old` fits the first `known` texts; from that part on where it shows a text. None
    where those differ, where one of these texts is shown again behind them, and where `new` asks
    them what `old` did not."""
    if new.parts[:part] != old.parts[:part]:
        return None
    behind = new.parts[part:]
    if within:
        if not behind:
            return None
        begun, said = old.parts[part], behind[0]
        if isinstance(begun, int):
            if said != begun:
                return None
        elif isinstance(said, int) or said[:within] != begun[:within]:
            return None
        else:
            behind = (said[within:], *behind[1:])
    if any(isinstance(one, int) and base_of(one) < known for one in behind):
        return None
    asked = {one[:3]: one.texts for one in old.guards}
    guards = []
    for guard in new.guards:
        fresh = tuple([number for number in guard.texts if base_of(number) >= known])
        if len(fresh) < len(guard.texts):
            before = asked.get(guard[:3], ())
            if not set(before).issuperset([one for one in guard.texts if base_of(one) < known]):
                return None
        if fresh:
            guards.append(Guard(guard.asks, guard.words, guard.holds, fresh))
    return Continuation(behind, tuple(guards))


def says(text: str, asks: str, words: tuple[str, ...]) -> bool:
    """Return what a predicate says of a text, or whether another method leaves it as it is."""
    if asks == "__bool__":
        return text != ""
    if asks == "__contains__":
        return words[0] in text
    if asks == "__eq__":
        return text == words[0]
    if asks == "startswith":
        return text.startswith(words[0])
    if asks == "endswith":
        return text.endswith(words[0])
    if asks == "structure":
        return structure(text) == words[0]
    return bool(getattr(text, asks)(*words) == text)
