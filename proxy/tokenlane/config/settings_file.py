"""A settings file: its values, and the line of everything in it.

Invariants:
- What YAML would accept silently (a key given twice, a value that contains itself) is a mistake.
- No more values are made than settings can have, whatever a file's aliases say.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import yaml

from tokenlane.config.validation import Path_, Validation
from tokenlane.errors import ConfigError

_VALUES_LIMIT_COUNT = 100_000
# YAML reads 1:1:1 in base 60, and what such a number costs grows with the square of its length.
_NUMBER_LIMIT_CHARS = 100


class SettingsFile:
    """values: as YAML reads them; {} where they hold themselves, which has no end. node: what they
    were made of; without it nothing has a line. problems: what is wrong with the file itself."""

    def __init__(self, path: Path, values: dict[Any, Any], node: yaml.Node | None = None) -> None:
        self._path = path
        self._lines: dict[Path_, int] = {}
        self._inside: set[int] = set()
        self.validation = Validation(self.where)
        self.values = values if self._note(node, ()) else {}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. Raise ConfigError where it is not a mapping in YAML."""
        try:
            return cls.of(path, path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read ({error.strerror}); check --config"
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8 text") from None

    @classmethod
    def of(cls, path: Path, text: str) -> Self:
        """As `read`, for a text."""
        try:
            loader = yaml.SafeLoader(text)
            try:
                node = loader.get_single_node()
                _bound(node, path)
                values = loader.construct_document(node) if node is not None else None
            finally:
                loader.dispose()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}:{mark.line + 1}" if mark else str(path)
            raise ConfigError(
                f"{where}: is not YAML ({getattr(error, 'problem', None) or 'unreadable'})"
            ) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError) as error:
            # PyYAML does not catch what its constructors raise: 0000-00-00 is a date to it.
            raise ConfigError(f"{path}: holds an invalid value ({error})") from None
        if values is None:
            return cls(path, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: the top level must be a mapping of settings")
        return cls(path, values, node)

    def where(self, path: Path_) -> str:
        """Return FILE:LINE of a value, or of the nearest parent that has one."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self._path}:{self._lines[path]}" if path else str(self._path)

    def lines(self) -> Iterator[tuple[Path_, str]]:
        """Yield FILE:LINE of everything that has one."""
        for path, line in self._lines.items():
            yield path, f"{self._path}:{line}"

    def _note(self, node: Any, path: Path_) -> bool:
        """Note where everything is, from here down. False where something holds itself, as aliases
        can: then there is no end to looking at it."""
        if id(node) in self._inside:
            self.validation.tell(path, "contains itself (by an alias)")
            return False
        self._inside.add(id(node))
        finite = True
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                here = (*path, name)
                self._lines[here] = line
                if first.setdefault(name, line) != line and name != "<<":
                    self.validation.note(
                        here, f"given twice, first in line {first[name]}; the last would count"
                    )
                finite = self._note(value, here) and finite
        elif isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self._lines[*path, place] = item.start_mark.line + 1
                finite = self._note(item, (*path, place)) and finite
        self._inside.discard(id(node))
        return finite


def _bound(node: yaml.Node | None, path: Path) -> None:
    """Raise ConfigError for more values than any settings have, which may be far more than the
    file is long: a few lines of aliases are billions. node: parsed, with no values made yet."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        """Return the number of values: an alias counts all of its own each time it is used."""
        if id(node) in sizes:
            return sizes[id(node)]
        sizes[id(node)] = 1  # `_note` reports a value that contains itself
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            below = [one for pair in below for one in pair]
        elif node.tag.endswith((":int", ":float")) and len(node.value) > _NUMBER_LIMIT_CHARS:
            line = node.start_mark.line + 1
            raise ConfigError(f"{path}:{line}: holds a number with too many digits")
        sizes[id(node)] = count = 1 + sum(map(size, below))
        return count

    if node is not None and size(node) > _VALUES_LIMIT_COUNT:
        raise ConfigError(
            f"{path}: means more than {_VALUES_LIMIT_COUNT} values; is an alias used too often?"
        )
