"""Flags of settings, made from the table of options, and the settings that were given by them.

Invariants:
- The command line knows no setting of its own: a setting's flag, its help and its checks come
  from tokenlane.config.options.
"""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from tokenlane.config.loading import LoadedSettings, look
from tokenlane.config.options import CONFIG_VARIABLE, OPTIONS, Option, unknown_variables
from tokenlane.config.settings import Section, Settings
from tokenlane.config.settings_file import SettingsFile
from tokenlane.errors import ConfigError

_TOP = "more"
# The sections of the file, with a line about each.
SECTIONS = {
    name: " ".join((kind.__doc__ or "").split()).partition(". ")[0].partition(", ")[0].rstrip(".")
    for name, kind in get_type_hints(Settings).items()
    if isinstance(kind, type) and issubclass(kind, Section)
} | {_TOP: "What stands beside the sections"}


def _option(parser: Any, option: Option, about_it: str = "") -> None:
    """Add the flags of a setting. Its help, which may be other than the setting's own, ends in
    unit, default, variable and path in the file."""
    where = f" [{option.variable}, {option.path}]"
    parser.add_argument(
        *option.flags,
        dest=option.path,
        metavar=option.metavar,
        help=((about_it or option.help) + option.facts + where).replace("%", "%%"),
        **({"action": "extend", "nargs": "+"} if option.many else {}),
    )


def config_flag(parser: argparse.ArgumentParser, *, bare: bool = True) -> None:
    """Add `--config`. bare: the file may be given without it too."""
    if bare:
        parser.add_argument("settings", metavar="FILE", nargs="?", help="the same as --config FILE")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"settings in YAML [{CONFIG_VARIABLE}]",
    )


class HelpAction(argparse.Action):
    """`--help`, without the settings that only have the flags of their sections; `--help=all`."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            nargs="?",
            choices=("all",),
            metavar="all",
            default=argparse.SUPPRESS,
            help="show what people use and exit; --help=all shows every flag",
        )

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        groups = parser._action_groups  # noqa: SLF001 - argparse has no public way to hide some
        if values is None:
            shown = [group for group in groups if group.title not in SECTIONS]
            if len(shown) < len(groups):
                parser.epilog = _more(group.title or "" for group in groups if group not in shown)
            groups[:] = shown
        parser.print_help()
        parser.exit()


def _more(titles: Iterable[str]) -> str:
    """Return the lines of a short help about the settings that it leaves out."""
    rows = [f"  {title:<12}{SECTIONS[title]}" for title in titles]
    return "\n".join(["settings, by section of the file (--help=all lists them):", *rows])


def setting_flags(
    parser: argparse.ArgumentParser,
    hidden: Sequence[str] = (),
    options: Mapping[str, Option] = OPTIONS,
) -> None:
    """Add the flags of all settings but those hidden: those with flags of their own first, the
    rest by section."""
    parser.usage = "%(prog)s [flags]"  # more than a hundred of them, listed below
    groups: dict[str, Any] = {"": parser}
    wanted = [option for option in options.values() if option.path not in hidden]
    for option in sorted(wanted, key=lambda option: not option.own_flags):
        section = "" if option.own_flags else option.section or _TOP
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        _option(groups[section], option)


def gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: a file and all settings."""
    config_flag(parser)
    setting_flags(parser)
    parser.usage = "%(prog)s [FILE] [flags]"


def admin_flags(parser: argparse.ArgumentParser, *, token: bool = False, bare: bool = True) -> None:
    """Add the flags that find a running gateway's admin port. token: its token's file, too. bare:
    as in `config_flag`."""
    config_flag(parser, bare=bare)
    _option(parser, OPTIONS["admin.host"], about_it="address of the gateway's admin port")
    _option(parser, OPTIONS["admin.port"], about_it="the gateway's admin port")
    if token:
        _option(parser, OPTIONS["admin.token_file"])


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the file that was given, by flag or variable. Raise ConfigError for two."""
    file: Path | None = args.config
    bare: str | None = getattr(args, "settings", None)
    if bare is not None:
        if "://" in bare:
            raise ConfigError(f"{bare} is not a settings file; did you mean --backend {bare}?")
        if file is not None:
            raise ConfigError(f"two settings files are given, {file} and {bare}")
        file = Path(bare)
    if file is None and os.environ.get(CONFIG_VARIABLE):
        file = Path(os.environ[CONFIG_VARIABLE])
    return file


def loaded(args: argparse.Namespace) -> LoadedSettings:
    """Return defaults, then the file, then variables, then the flags that were given. Raises
    ConfigError."""
    return looked(args).sound()


def looked(args: argparse.Namespace, *, with_file: bool = True) -> LoadedSettings:
    """As `loaded`, with what is wrong beside what is right. Raise ConfigError for a file that
    cannot be read."""
    file = config_file(args) if with_file else None
    read = SettingsFile.read(file) if file is not None else None
    return look(read, _flags(args), os.environ)


def _flags(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the texts of the flags that were given, by their settings."""
    return {
        path: value if isinstance(value, list) else [value]
        for path, value in vars(args).items()
        if path in OPTIONS and value is not None
    }


def misspelt_variables() -> Iterator[str]:
    """Yield a sentence for each variable that looks like a setting and is not one."""
    for name, meant in unknown_variables(os.environ).items():
        said = f"did you mean {meant}?" if meant else "tokenlane serve --help=all lists all"
        yield f"the variable {name} is not a setting; {said}"
