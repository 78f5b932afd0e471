"""What a reload changes in the settings, and what of it can be put in force. Pure.

Invariants:
- A setting that needs a restart keeps its value and is named; nothing is ignored silently.
- The new settings are one whole value, checked as at a start.
"""

from collections.abc import Container
from typing import Any, TypeVar

import msgspec

from tokenlane.config.options import leaves, options_of
from tokenlane.config.settings import Settings

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Differences(msgspec.Struct, frozen=True):
    """settings: to be in force. live: paths of what is new in them. restart: of settings that
    change only when the gateway is restarted."""

    settings: Settings
    live: tuple[str, ...]
    restart: tuple[str, ...]


def changed(now: Settings, read: Settings) -> Differences:
    """Compare settings. now: in force. read: as they would be at a start."""
    options = options_of(type(now))
    before = dict(leaves(now))
    different = [path for path, value in leaves(read) if value != before[path]]
    live = tuple(path for path in different if options[path].live)
    restart = tuple(path for path in different if not options[path].live)
    return Differences(_merged(now, read, live), live, restart)


def _merged(now: _Struct, read: _Struct, live: Container[str], prefix: str = "") -> _Struct:
    """Return what is in force with what was read of these paths. Each section is made once: a part
    of what is new in it may not go with the rest of what was."""
    values: dict[str, Any] = {}
    for name in now.__struct_fields__:
        before, new = getattr(now, name), getattr(read, name)
        if isinstance(before, msgspec.Struct):
            values[name] = _merged(before, new, live, f"{prefix}{name}.")
        else:
            values[name] = new if prefix + name in live else before
    return type(now)(**values)
