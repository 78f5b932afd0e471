"""Values checked against the types of the settings: a sentence for each mistake, and the valid
rest.

Invariants:
- Every mistake is found at once, each named with its place, its path and what to do.
- Nothing is guessed: an unknown key is an error, however clear its meaning.
- What is returned is valid, so that no mistake is reported twice.
"""

import difflib
import math
import re
from collections.abc import Callable
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from tokenlane.config.options import OPTIONS, REPLACED, bare, metavar, wanted
from tokenlane.config.settings import Settings

Path_ = tuple[str | int, ...]
# Suggestions are looked up among all settings, but not for every line of a file of another kind.
_HINTS_LIMIT_COUNT = 20
_SHOWN_LIMIT_CHARS = 40
# The largest integers that a message to the workers can carry.
_INTEGER_LIMIT = 2**63
_UNCARRIED = re.compile("[\0\ud800-\udfff]")
WRONG: Final = object()


class Validation:
    """where: names the place of a path. secret: a value is never shown, nor an unknown key, which
    may be one in the wrong place. problems: sentences. wrong: the paths whose values they
    are about. meant: the settings that unknown keys probably mean."""

    def __init__(self, where: Callable[[Path_], str], *, secret: bool = False) -> None:
        self._where = where
        self._secret = secret
        self._unknown_count = 0
        self.problems: list[str] = []
        self.wrong: list[str] = []
        self.meant: list[str] = []

    def right(self, value: Any, kind: Any, path: Path_) -> Any:
        """Return a value without what is wrong in it; WRONG where that is all of it."""
        plain = bare(kind)
        words = metavar(kind).split("|")
        if value is False and "off" in words:
            return "off"  # YAML's own word for false
        if "NUMBER" in words and type(value) is int:
            value = str(value)
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            if isinstance(value, dict):
                return self._section(value, plain, path)
            if value is None and len(path) == 1:
                # `server:` with nothing below it is a section of defaults to its author.
                return {}
        elif get_origin(plain) is dict and isinstance(value, dict):
            below = get_args(plain)[1]
            made = {name: self._named(name, inner, below, path) for name, inner in value.items()}
            return {name: inner for name, inner in made.items() if inner is not WRONG}
        elif get_origin(plain) is tuple and isinstance(value, list):
            below = get_args(plain)[0]
            items = [self.right(inner, below, (*path, at)) for at, inner in enumerate(value)]
            # An invalid item leaves its place empty, so that the following ones keep theirs.
            return [
                "" if inner is WRONG else inner
                for inner in items
                if below is str or inner is not WRONG
            ]
        elif _is_right(value, kind):
            return value
        shown = "" if self._secret else f", and is {_shown(value, plain)}"
        return self.tell(path, f"must be {wanted(kind)}{shown}")

    def note(self, path: Path_, said: str) -> None:
        """Add a sentence about a path."""
        self.problems.append(f"{self._where(path)}: {dotted(path)}: {said}")

    def tell(self, path: Path_, said: str) -> object:
        """Add what makes the value of a path unusable."""
        self.note(path, said)
        self.wrong.append(dotted(path))
        return WRONG

    def _named(self, name: Any, value: Any, kind: Any, path: Path_) -> Any:
        here = (*path, str(name))
        if not isinstance(name, str) or _UNCARRIED.search(name):
            return self.tell(here, "must have text for a name; put it in quotes")
        return self.right(value, kind, here)

    def _section(self, value: dict[Any, Any], kind: type[msgspec.Struct], path: Path_) -> Any:
        kinds = get_type_hints(kind, include_extras=True)
        made = {}
        for name, below in value.items():
            if name in kinds:
                made[name] = self.right(below, kinds[name], (*path, name))
            else:
                self._unknown(str(name), kind, path)
        for field in msgspec.structs.fields(kind):
            if field.required and field.name not in made:
                return self.tell(path, f"needs `{field.name}`")
            if field.required and made[field.name] is WRONG:
                return WRONG
        return {name: below for name, below in made.items() if below is not WRONG}

    def _unknown(self, name: str, kind: type[msgspec.Struct], path: Path_) -> None:
        here = (*path, name)
        if not path and name in OPTIONS:  # with a dot, as people write about it
            section, _, field = name.partition(".")
            self.note(here, f"must be in its section, `{section}: {{{field}: ...}}`")
            self.meant.append(name)
            return
        self._unknown_count += 1
        looks = self._unknown_count <= _HINTS_LIMIT_COUNT
        meant = suggestion(name, kind, path) if looks else None
        known = ", ".join(kind.__struct_fields__)
        if self._secret and not difflib.get_close_matches(name, kind.__struct_fields__, 1):
            self.note(path, f"has an unknown field; known here: {known}")
            return
        hint = f"did you mean {meant}?" if meant else f"known here: {known}"
        self.note(here, f"there is no such setting; {hint}")
        if meant:
            self.meant.append(meant)


def dotted(path: Path_) -> str:
    """Return a path as people write it: `tokens.folders`, `backends[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggestion(name: str, kind: type[msgspec.Struct], path: Path_) -> str | None:
    """Return the setting that was probably meant: what does a former one's work, the same name or
    flag elsewhere, a like name here, a like name anywhere."""
    here = dotted((*path, name))
    if here in REPLACED:
        return REPLACED[here]
    near = difflib.get_close_matches(name, kind.__struct_fields__, 1, 0.6)
    if len(path) > 1:  # in a list or a mapping, where no other setting can be meant
        return dotted((*path, near[0])) if near else None
    flag = "--" + name.replace("_", "-")
    places = [*Settings.__struct_fields__, *OPTIONS]
    last = {place.rpartition(".")[2]: place for place in reversed(places)}
    same = next((option.path for option in OPTIONS.values() if flag in option.flags), None)
    if name in last or same:
        return last.get(name, same)
    if near:
        return dotted((*path, near[0]))
    near = difflib.get_close_matches(here, places, 1, 0.8)
    near = near or [last[one] for one in difflib.get_close_matches(name, last, 1, 0.7)]
    return near[0] if near else None


def _is_right(value: Any, kind: Any) -> bool:
    if isinstance(value, str) and _UNCARRIED.search(value):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, int) and abs(value) >= _INTEGER_LIMIT:
        return False
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _shown(value: Any, kind: Any) -> str:
    """Describe a wrong value. A text is shown only where it had to be one of a few, since it could
    be a misplaced secret."""
    if isinstance(value, str) and get_origin(kind) is Literal:
        near = difflib.get_close_matches(value, map(str, get_args(kind)), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return repr(value[:_SHOWN_LIMIT_CHARS]) + meant
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "too large" if abs(value) >= _INTEGER_LIMIT else str(value)
    return "empty" if value is None else {bool: "true or false", str: "text", list: "a list",
        dict: "a mapping"}.get(type(value), "something else")  # fmt: skip
