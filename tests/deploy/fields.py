"""What somebody else's model did not keep of what it was given: fields that it does not know."""

from collections.abc import Iterator
from typing import Any


def unknown(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that a model did not keep, or changed."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            at = f"{path}.{name}"
            if name in kept:
                yield from unknown(value, kept[name], at)
            else:
                yield at
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown(one, other, f"{path}[{index}]")
    elif given != kept:
        yield path
