"""Every setting as an option: its path in the file, its flags, its variable, its default, its unit.

Invariants:
- The table is read off the fields of the settings, so no setting can be forgotten here.
- A flag, a variable and a line of the file mean the same and are checked by the same rule.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tokenlane.config.secret import SECRET_VARIABLES
from tokenlane.config.settings import Settings
from tokenlane.errors import ConfigError

PREFIX = "TOKENLANE_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
# Read elsewhere: by the command line, when the package is built, and where secrets are used.
_OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, PREFIX + "COMPILE", *SECRET_VARIABLES})
# Settings that there were once, and what does their work now.
REPLACED = {"tokens.cache_limit_entries": "tokens.cache_limit_bytes"} | {
    f"tokens.{kind}_{of}": f"tokens.cache_{now}"
    for kind in ("shape", "opening", "segment", "prefix")
    for of, now in (
        ("limit_entries", "limit_bytes"),
        ("limit_bytes", "limit_bytes"),
        ("entry_limit_bytes", "entry_limit_bytes"),
    )
}


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A setting. type: of its value, without ranges. kind: with them. help: one line, without
    default and unit.
    live: a reload puts it in force; else a restart is needed. own_flags: those that people type,
    where it has any. metavar: what its value looks like where it is typed."""

    path: str
    type: Any
    kind: Any
    default: Any
    help: str
    live: bool
    own_flags: tuple[str, ...]
    metavar: str
    unit: str | None = None

    @property
    def section(self) -> str:
        """The part of the file it is in; empty for those at the top."""
        return self.path.rpartition(".")[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """Return all spellings on the command line."""
        return self.own_flags or ("--" + self.path.replace(".", "-").replace("_", "-"),)

    @property
    def flag(self) -> str:
        """Return the usual spelling on the command line."""
        return self.flags[0]

    @property
    def variable(self) -> str:
        """In the environment."""
        return _variable(self.flag.removeprefix("--"))

    @property
    def many(self) -> bool:
        """May be given more than once: a list, or a mapping of texts."""
        return self.words or bool(self.type == dict[str, str])

    @property
    def words(self) -> bool:
        """Is a list of texts."""
        return bool(self.type == tuple[str, ...])

    @property
    def default_text(self) -> str | None:
        """The default as it would be typed; None for none."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default)) or None
        return None if isinstance(self.default, dict | None) else _typed(self.default)

    @property
    def facts(self) -> str:
        """Return unit and default as the help has them: ` (seconds; default: 4.0)`."""
        default = f"default: {self.default_text}" if self.default_text else None
        known = "; ".join(filter(None, (self.unit, default)))
        return f" ({known})" if known else ""


def _variable(name: str) -> str:
    return PREFIX + name.replace("-", "_").replace(".", "_").upper()


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def metavar(kind: Any) -> str:
    """Return what stands for a value of a type in the help. Words between bars are choices; NUMBER
    is a text that may be one."""
    for meta in metas(kind):
        if said := (meta.extra or {}).get("metavar"):
            return str(said)
    kind = bare(kind)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    known = {int: "N", float: "X", bool: "BOOL", str: "WORD", tuple[str, ...]: "WORD"}
    return known.get(kind, "JSON")


def metas(kind: Any) -> tuple[msgspec.Meta, ...]:
    """Return the metadata of an annotated type."""
    said: tuple[msgspec.Meta, ...] = getattr(kind, "__metadata__", ())
    return said


def bare(kind: Any) -> Any:
    """Return a type without its metadata."""
    return kind.__origin__ if metas(kind) else kind


def leaves(settings: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting, in the order of the file."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _options(settings: msgspec.Struct, prefix: str = "") -> Iterator[Option]:
    types = get_type_hints(type(settings))
    for field in msgspec.structs.fields(settings):
        path, default = prefix + field.name, getattr(settings, field.name)
        if isinstance(default, msgspec.Struct):
            yield from _options(default, path + ".")
            continue
        said: dict[str, Any] = {"metavar": metavar(field.type)}
        for meta in metas(field.type):
            said |= meta.extra or {}
        yield Option(path=path, type=types[field.name], kind=field.type, default=default, **said)


@cache
def options_of(kind: type[msgspec.Struct]) -> dict[str, Option]:
    """Return every setting by its path, in the order of the file."""
    return {option.path: option for option in _options(kind())}


OPTIONS = options_of(Settings)


def shown(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """(dotted path, value as JSON text, whether it is the default) of every setting."""
    for path, value in leaves(settings):
        # Digests are no secrets, and nobody's business either.
        shown_value = f"{len(value)} keys" if path == "auth.keys" else value
        yield path, msgspec.json.encode(shown_value).decode(), value == OPTIONS[path].default


def wanted(kind: Any) -> str:
    """Return a type in words: what a value must be."""
    if metas(kind):
        looks = next(filter(None, ((meta.extra or {}).get("looks") for meta in metas(kind))), None)
        return looks or wanted(bare(kind)) + _range(metas(kind))
    if get_origin(kind) is Literal:
        return "one of: " + ", ".join(_typed(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return "a mapping"
    if datetime in map(bare, get_args(kind)):
        return "a time with its zone, as 2027-01-31T00:00:00Z"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _range(said: tuple[msgspec.Meta, ...]) -> str:
    """Return the bounds of a number: ` from 0 to 65535`."""
    least, above, most = (
        next((bound for meta in said if (bound := getattr(meta, name)) is not None), None)
        for name in ("ge", "gt", "le")
    )
    if least is not None and most is not None:
        return f" from {least} to {most}"
    low = f" of at least {least}" if least is not None else ""
    low = f" above {above}" if above is not None else low
    return low + (f" and at most {most}" if most is not None else "")


def _pairs(words: list[str], source: str, form: str) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise ConfigError(f"{source}: {word!r} must look like {form}")
        pairs[name] = value
    return pairs


def read(option: Option, texts: list[str], source: str) -> Any:
    """Return a value as typed, its range unchecked. source: the flag or variable, for the
    ConfigError if it is none."""
    if option.many:
        words = [word for text in texts for word in text.replace(",", " ").split()]
        return words if option.words else _pairs(words, source, option.metavar)
    text = texts[-1]
    if get_origin(option.type) in (dict, tuple):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError(f"{source}: is not JSON; it must be {wanted(option.type)}") from None
    try:
        return msgspec.convert(text, option.type, strict=False)
    except msgspec.ValidationError:
        raise ConfigError(f"{source}: {text!r} must be {wanted(option.kind)}") from None


def from_environment(
    environ: Mapping[str, str], options: Mapping[str, Option] = OPTIONS
) -> Iterator[tuple[Option, str]]:
    """Yield the settings given as variables, with their texts. Empty ones count as not given."""
    for option in options.values():
        text = environ.get(option.variable, "")
        # Kubernetes puts TOKENLANE_PORT=tcp://… there for a Service of that name.
        if text and not (option.type is int and text.startswith("tcp://")):
            yield option, text


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that look like ours and mean nothing, each with what was probably meant, or an
    empty text."""
    known = {option.variable for option in OPTIONS.values()} | _OTHER_VARIABLES
    services = ("_SERVICE_HOST", "_SERVICE_PORT")
    unknown = sorted(
        name
        for name, value in environ.items()
        if name.startswith(PREFIX)
        and name not in known
        and not value.startswith("tcp://")
        and not any(part in name for part in (*services, "_TCP"))
    )
    replaced = {_variable(old): OPTIONS[now] for old, now in REPLACED.items()}
    bare = [name.removeprefix(PREFIX) for name in known]

    def meant(name: str) -> str:
        if name in replaced:
            return replaced[name].variable
        near = get_close_matches(name.removeprefix(PREFIX), bare, 1)
        return PREFIX + near[0] if near else ""

    return {name: meant(name) for name in unknown}
