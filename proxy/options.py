"""Every setting by its dotted path, as one table. Pure.

Invariants:
- The table is read off the settings' own types: a setting cannot be forgotten here.
- What is shown of a setting is JSON text. Values marked secret never are.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from proxy.settings import Settings

HIDDEN = "(hidden)"


def leaves(settings: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting, in the order of the file."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


_DEFAULTS = dict(leaves(Settings()))


def shown(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """(dotted path, value as JSON text, whether it is the default) of every setting."""
    for path, value in leaves(settings):
        yield path, msgspec.json.encode(value).decode(), value == _DEFAULTS[path]
