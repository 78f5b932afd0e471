"""Flags of settings, made from the table of options, and the settings that were given by them.

Invariants:
- The command line knows no setting of its own: a setting's flag, its help and its checks come
  from tokenlane.config.options.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from tokenlane.config import options
from tokenlane.config.loading import LoadedSettings, load
from tokenlane.config.options import ALIASES, FORMS, OPTIONS, Option

CONFIG_VARIABLE = "TOKENLANE_CONFIG"
_USUAL = (
    "backends",
    "server.host",
    "server.port",
    "server.workers",
    "admin.host",
    "admin.port",
    "routing.policy",
    "tokens.folders",
)
_METAVARS: dict[Any, str] = {
    "backends": "URL",
    "server.host": "H",
    "admin.host": "H",
    "server.port": "P",
    "admin.port": "P",
    "routing.policy": "NAME",
    **FORMS,
    int: "N",
    float: "X",
    bool: "BOOL",
}


def _option(parser: Any, option: Option, flags: Sequence[str] = (), about_it: str = "") -> None:
    """The flag of a setting. Its help, which may be other than the setting's own, ends in unit,
    default, variable and path in the file."""
    about = [text for text in (option.unit, _default(option)) if text]
    shown = f" ({'; '.join(about)})" if about else ""
    where = f" [{option.variable}, {option.path}]"
    parser.add_argument(
        *(flags or (option.flag,)),
        dest=option.path,
        metavar=_metavar(option),
        help=((about_it or option.help) + shown + where).replace("%", "%%"),
        **({"action": "extend", "nargs": "+"} if option.many else {}),
    )


def _metavar(option: Option) -> str:
    """What to type."""
    known = _METAVARS.get(option.path) or _METAVARS.get(option.type)
    if known is not None:
        return known
    if option.path.endswith("_file"):
        return "FILE"
    if get_origin(option.type) is Literal:
        return "|".join(map(str, get_args(option.type)))
    return "WORD" if option.words or isinstance(option.default, str) else "JSON"


def _default(option: Option) -> str:
    text = option.default_text
    return f"default: {text}" if text else ""


def config_flag(parser: argparse.ArgumentParser) -> None:
    """`--config`."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings in YAML [{CONFIG_VARIABLE}]",
    )


def setting_flags(parser: argparse.ArgumentParser, hidden: Sequence[str] = ()) -> None:
    """Flags of all settings but those hidden: the usual ones first, the rest by section."""
    parser.usage = "%(prog)s [flags]"  # seventy of them, listed below
    groups: dict[str, Any] = {}
    wanted = [option for option in OPTIONS.values() if option.path not in hidden]
    for option in sorted(wanted, key=lambda option: option.path not in _USUAL):
        if option.path in _USUAL:
            aliases = ALIASES.get(option.path, ())
            _option(parser, option, (option.flag, *aliases))
            continue
        section = option.section or "more"
        if section not in groups:
            groups[section] = parser.add_argument_group(f"{section}")
        _option(groups[section], option)


def gateway_flags(parser: argparse.ArgumentParser) -> None:
    """A file and all settings."""
    config_flag(parser)
    setting_flags(parser)


def admin_flags(parser: argparse.ArgumentParser, *, token: bool = False) -> None:
    """Where a running gateway's admin port is. token: and what it wants to see."""
    config_flag(parser)
    _option(parser, OPTIONS["admin.host"], about_it="address of the gateway's admin port")
    _option(parser, OPTIONS["admin.port"], about_it="the gateway's admin port")
    if token:
        _option(parser, OPTIONS["admin.token_file"])


def config_file(args: argparse.Namespace) -> Path | None:
    """The file that was given, by flag or variable."""
    file: Path | None = args.config
    if file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    return file


def loaded(args: argparse.Namespace) -> LoadedSettings:
    """Defaults, then the file, then variables, then the flags that were given."""
    file = config_file(args)
    flags: dict[str, tuple[str, Any]] = {}
    for path, value in vars(args).items():
        option = OPTIONS.get(path)
        if option is not None and value is not None:
            texts = value if isinstance(value, list) else [value]
            flags[path] = option.flag, options.read(option, texts, option.flag)
    return load(file, flags, os.environ)


def misspelt_variables() -> Iterator[str]:
    """A sentence for each variable that looks like a setting and is none."""
    for name, meant in options.unknown_variables(os.environ).items():
        said = f"did you mean {meant}?" if meant else "tokenlane serve --help lists all"
        yield f"the variable {name} means nothing; {said}"
