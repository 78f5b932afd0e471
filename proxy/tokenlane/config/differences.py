"""What a reload changes in the settings, and what of it can be put in force. Pure.

Invariants:
- What needs a restart stays as it is, and is named; nothing is ignored in silence.
- What is put in force is a whole new value, checked like one that is read at the start.
"""

from typing import Any

import msgspec

from tokenlane.config.options import leaves, options_of
from tokenlane.config.settings import Settings


class Differences(msgspec.Struct, frozen=True):
    """settings: to be in force. live: paths of what is new in them. restart: of what is not, until
    the gateway is started anew."""

    settings: Settings
    live: tuple[str, ...]
    restart: tuple[str, ...]


def changed(now: Settings, read: Settings) -> Differences:
    """now: in force. read: as they would be at a start."""
    options = options_of(type(now))
    before = dict(leaves(now))
    different = [path for path, value in leaves(read) if value != before[path]]
    values: dict[str, Any] = msgspec.structs.asdict(now)
    for path in different:
        if options[path].live:
            _put(values, read, path.split("."))
    return Differences(
        type(now)(**values),
        tuple(path for path in different if options[path].live),
        tuple(path for path in different if not options[path].live),
    )


def _put(values: dict[str, Any], read: msgspec.Struct, path: list[str]) -> None:
    name, *below = path
    if not below:
        values[name] = getattr(read, name)
        return
    section: dict[str, Any] = msgspec.structs.asdict(values[name])
    _put(section, getattr(read, name), below)
    values[name] = type(values[name])(**section)
