"""What a reload changes in the settings, and what of it can be put in force. Pure.

Invariants:
- A setting that needs a restart keeps its value and is named; nothing is ignored silently.
- The new settings are one whole value, checked as at a start.
"""

from typing import Any

import msgspec

from tokenlane.config.options import leaves, options_of
from tokenlane.config.settings import Settings


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
