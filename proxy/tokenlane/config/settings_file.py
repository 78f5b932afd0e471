"""A settings file: its values, and the line of everything in it.

Invariants:
- What YAML would accept silently (a key given twice, a value that contains itself) is a mistake.
- No more values are made than settings can have, whatever a file's aliases say.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tokenlane.config.validation import Path_, Validation
from tokenlane.errors import ConfigError

# More than any settings have.
_VALUES_LIMIT_COUNT = 100_000
# YAML reads 1:1:1 in base 60, and what such a number costs grows with the square of its length.
_NUMBER_LIMIT_CHARS = 100
_MERGE_TAG = "tag:yaml.org,2002:merge"

# A key and its value. What is merged into a mapping (<<) is the very pairs of another.
Pair = tuple[yaml.Node, yaml.Node]


class SettingsFile:
    """values: as YAML reads them; {} where they hold themselves, which has no end. node: what they
    were made of; without it nothing has a line. twice: as `read_yaml` returns it. problems: what
    is wrong with the file itself."""

    def __init__(
        self,
        path: Path,
        values: dict[Any, Any],
        node: yaml.Node | None = None,
        twice: Mapping[Pair, int] | None = None,
    ) -> None:
        self._path = path
        self._twice = twice or {}
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
            values, node, twice = read_yaml(path, text, _VALUES_LIMIT_COUNT)
        except yaml.YAMLError as error:
            why = getattr(error, "problem", None) or "unreadable"
            raise ConfigError(f"{place_of(error, path)}: is not YAML ({why})") from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError) as error:
            # PyYAML does not catch what its constructors raise: 0000-00-00 is a date to it.
            raise ConfigError(f"{path}: holds an invalid value ({error})") from None
        if values is None:
            return cls(path, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: the top level must be a mapping of settings")
        return cls(path, values, node, twice)

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
            for key, value in node.value:
                here = (*path, str(key.value))
                self._lines[here] = key.start_mark.line + 1
                if first := self._twice.get((key, value)):
                    self.validation.note(
                        here, f"given twice, first in line {first}; the last would count"
                    )
                finite = self._note(value, here) and finite
        elif isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self._lines[*path, place] = item.start_mark.line + 1
                finite = self._note(item, (*path, place)) and finite
        self._inside.discard(id(node))
        return finite


def place_of(error: yaml.YAMLError, path: Path) -> str:
    """Return the file and, where it is known, the line of what is not YAML."""
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}" if mark else str(path)


def line_of(node: yaml.Node | None, path: Path_) -> int:
    """Return the line of a value, or of the nearest parent that is there. path: from this node."""
    line = node.start_mark.line if node is not None else 0
    for part in path:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    node, line = value, key.start_mark.line
    return int(line) + 1


def read_yaml(
    path: Path, text: str, limit_count: float
) -> tuple[Any, yaml.Node | None, dict[Pair, int]]:
    """Return a file's values, what they were made of, and every key that its mapping has
    already, with its value and the line of the first one. Raise ConfigError for more values than
    limit_count, and whatever PyYAML raises."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _bound(node, path, limit_count)
        if node is None:
            return None, None, {}
        # Values are made of mappings with everything merged into them, which may be overridden.
        twice = _repeated(node)
        return loader.construct_document(node), node, twice
    finally:
        loader.dispose()


def _repeated(root: yaml.Node) -> dict[Pair, int]:
    """Return what `read_yaml` does of keys. root: parsed, with no values made yet."""
    found: dict[Pair, int] = {}
    seen: set[yaml.Node] = set()
    left = [root]
    while left:
        node = left.pop()
        if node in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(node)
        if isinstance(node, yaml.SequenceNode):
            left += node.value
            continue
        first: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in first and key.tag != _MERGE_TAG:
                found[key, value] = first[name]
            first.setdefault(name, key.start_mark.line + 1)
            left.append(value)
    return found


def _bound(node: yaml.Node | None, path: Path, limit_count: float) -> None:
    """Raise ConfigError for more values than limit_count, which may be far more than the file is
    long: a few lines of aliases are billions. node: parsed, with no values made yet."""
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

    if node is not None and size(node) > limit_count:
        raise ConfigError(
            f"{path}: means more than {limit_count} values; is an alias used too often?"
        )
