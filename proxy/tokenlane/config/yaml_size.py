"""The number of values in a piece of YAML, which may be far more than its length: a few lines of
aliases are billions of values."""

from pathlib import Path

import yaml

from tokenlane.errors import ConfigError

_VALUES_LIMIT_COUNT = 100_000
# YAML reads 1:1:1 in base 60, and what such a number costs grows with the square of its length.
_NUMBER_LIMIT_CHARS = 100


def bound(node: yaml.Node | None, path: Path) -> None:
    """Raise ConfigError for more values than any settings have. node: parsed, with no values made
    yet."""
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
