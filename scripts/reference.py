"""docs/configuration.md, from the table of settings:

    python -m scripts.reference > docs/configuration.md

Invariants:
- Whatever `--help=all` says of a setting stands here, from the same table; a test compares.
"""

import inspect
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec

from tokenlane.config.options import Option, options_of, wanted
from tokenlane.config.settings import Settings

_HEAD = """# Configuration reference

Every setting, as `tokenlane serve --help=all` has it. How files, variables and flags go together,
and what the larger settings are for, is in [settings.md](settings.md); what a knob costs is in
[tuning.md](tuning.md). This page is generated:
`python -m scripts.reference > docs/configuration.md`.

`TOKENLANE_CONFIG` (`--config FILE`) names the file. Secrets have no place in it: the key for
replicas is in `TOKENLANE_UPSTREAM_API_KEY` and the token for changes in `TOKENLANE_ADMIN_TOKEN`,
or in files that settings name; of clients' keys only digests are known.

*restart*: a reload does not put it in force ([changing.md](changing.md)).
"""


def _sections(kind: type[Settings]) -> Iterator[tuple[str, str, list[Option]]]:
    """Path, docstring and settings of each section, in the order of the file."""
    options = list(options_of(kind).values())
    yield "", "", [option for option in options if not option.section]
    for name, section in get_type_hints(kind).items():
        if isinstance(section, type) and issubclass(section, msgspec.Struct):
            own = [option for option in options if option.section == name]
            yield name, inspect.cleandoc(section.__doc__ or ""), own


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(option: Option) -> str:
    unit: Any = option.unit
    kind = unit or wanted(option.type)
    default = option.default_text
    flags = ", ".join(f"`{flag}`" for flag in option.flags)
    shown = f"`{_cell(default)}`" if default else ""
    name = option.path.rpartition(".")[2]
    what = _cell(option.help) + ("" if option.live else "; *restart*")
    return f"| `{name}` | {what} | {_cell(kind)} | {shown} | {flags} | `{option.variable}` |"


def markdown(kind: type[Settings] = Settings) -> str:
    """The page."""
    lines = [_HEAD]
    for name, about, options in _sections(kind):
        lines += [f"## {name or 'At the top'}", ""]
        if about:
            lines += [about, ""]
        lines += ["| setting | what | type or unit | default | flag | variable |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_row(option) for option in options]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
