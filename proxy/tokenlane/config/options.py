"""Every setting as an option: its path in the file, its flag, its variable, its default, its unit.

Invariants:
- The table is read off the settings' own types, so no setting can be forgotten here; only the
  words of the help (tokenlane.config.help) are written by hand.
- A flag, a variable and a line of the file mean the same and are checked by the same rule.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tokenlane.config.help import HELP
from tokenlane.config.keyring import ADMIN_TOKEN_VARIABLE, REPLICA_KEY_VARIABLE
from tokenlane.config.settings import Settings
from tokenlane.errors import ConfigError

PREFIX = "TOKENLANE_"
# Read elsewhere: by the command line, and when the package is built.
_OTHER_VARIABLES = frozenset(
    {PREFIX + "CONFIG", PREFIX + "COMPILE", REPLICA_KEY_VARIABLE, ADMIN_TOKEN_VARIABLE}
)
# Flags that people type; all others are named after the setting's path.
_FLAGS = {
    "backends": "--backend",
    "server.host": "--host",
    "server.port": "--port",
    "server.workers": "--workers",
    "routing.policy": "--policy",
    "tokens.folders": "--tokenizer",
}
# Settings, or sections of them, that a reload puts in force; all others need a restart.
_LIVE = (
    "backends", "admin.token_file", "admin.read_needs_token", "admin.hosts", "upstream", "auth",
    "admission", "requests", "models", "control", "discovery", "log", "health", "prices",
    *(
        f"server.{name}"
        for name in (
            "head_limit_bytes", "header_limit_count", "target_limit_bytes", "body_limit_bytes",
            "pipelined_limit_bytes", "write_high_water_bytes", "idle_deadline_s",
            "head_deadline_s", "body_deadline_s", "write_stall_deadline_s", "drain_deadline_s",
            "drain_linger_s", "orphan_s", "trusted_peers",
        )
    ),
    *(
        f"routing.{name}"
        for name in (
            "policy", "alpha", "idle_alpha", "sibling_alpha", "session_headers", "parent_headers",
            "head_limit_tokens", "load_factor", "replica_limit_count", "refused_out_s",
            "host_block_worth", "tenant_keep_s",
        )
    ),
)  # fmt: skip
# Other routers' words for the same.
ALIASES = {"backends": ("--worker-urls", "--static-backends")}
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
# What a mapping of texts looks like where it is typed.
FORMS = {"tokens.folders": "MODEL=DIR", "models.aliases": "NAME=MODEL"}
_UNITS = {
    "_s": "seconds", "_bytes": "bytes", "_tokens": "tokens", "_blocks": "blocks",
    "_entries": "entries", "_jobs": "jobs", "_per_million": "per million tokens",
}  # fmt: skip


class Option(msgspec.Struct, frozen=True):
    """A setting. type: of its value. default: msgspec.NODEFAULT never occurs."""

    path: str
    type: Any
    default: Any

    @property
    def section(self) -> str:
        """The part of the file it is in; empty for those at the top."""
        return self.path.rpartition(".")[0]

    @property
    def flag(self) -> str:
        """On the command line."""
        named = "--" + self.path.replace(".", "-").replace("_", "-")
        return _FLAGS.get(self.path, named)

    @property
    def variable(self) -> str:
        """In the environment."""
        return PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    @property
    def unit(self) -> str | None:
        """What its number is in."""
        if isinstance(self.default, str):
            return None
        return next((unit for end, unit in _UNITS.items() if self.path.endswith(end)), None)

    @property
    def live(self) -> bool:
        """A reload puts it in force; else a restart is needed."""
        return any(self.path == one or self.path.startswith(one + ".") for one in _LIVE)

    @property
    def many(self) -> bool:
        """May be given more than once: a list, or a mapping of texts."""
        return self.words or bool(self.type == dict[str, str])

    @property
    def words(self) -> bool:
        """Is a list of texts."""
        return bool(self.type == tuple[str, ...])

    @property
    def help(self) -> str:
        """One line, without default and unit."""
        return HELP[self.path]

    @property
    def default_text(self) -> str | None:
        """The default as it would be typed; None for none."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default)) or None
        return None if isinstance(self.default, dict) else _typed(self.default)


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def leaves(settings: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every setting, in the order of the file."""
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _types(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(struct).items():
        if name not in struct.__struct_fields__:
            continue
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _types(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


_DEFAULTS = dict(leaves(Settings()))
OPTIONS: dict[str, Option] = {
    path: Option(path, kind, _DEFAULTS[path]) for path, kind in _types(Settings)
}


def shown(settings: Settings) -> Iterator[tuple[str, str, bool]]:
    """(dotted path, value as JSON text, whether it is the default) of every setting."""
    for path, value in leaves(settings):
        # Digests are no secrets, and nobody's business either.
        shown_value = f"{len(value)} keys" if path == "auth.keys" else value
        yield path, msgspec.json.encode(shown_value).decode(), value == _DEFAULTS[path]


def wanted(kind: Any) -> str:
    """A type in words: what a value must be."""
    if get_origin(kind) is Literal:
        return "one of: " + ", ".join(_typed(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return "a mapping"
    if datetime in get_args(kind):
        return "a time with its zone, as 2027-01-31T00:00:00Z"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _pairs(words: list[str], source: str, form: str) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, _, value = word.partition("=")
        if not (name and value):
            raise ConfigError(f"{source}: {word!r} must look like {form}")
        pairs[name] = value
    return pairs


def read(option: Option, texts: list[str], source: str) -> Any:
    """A value as typed. source: the flag or variable, for the ConfigError if it is none."""
    if option.many:
        words = [word for text in texts for word in text.replace(",", " ").split()]
        return words if option.words else _pairs(words, source, FORMS[option.path])
    text = texts[-1]
    value: Any = text
    if get_origin(option.type) in (dict, tuple):
        try:
            value = json.loads(text)
        except ValueError:
            raise ConfigError(f"{source}: is not JSON; it must be {wanted(option.type)}") from None
    try:
        made = msgspec.convert(value, option.type, strict=False)
    except msgspec.ValidationError:
        raise ConfigError(f"{source}: {text!r} must be {wanted(option.type)}") from None
    return msgspec.to_builtins(made)


def from_environment(environ: Mapping[str, str]) -> Iterator[tuple[Option, Any]]:
    """Settings given as variables. Empty ones count as not given. ConfigError names a wrong one."""
    for option in OPTIONS.values():
        text = environ.get(option.variable, "")
        # Kubernetes puts TOKENLANE_PORT=tcp://… there for a Service of that name.
        if text and not (option.type is int and text.startswith("tcp://")):
            yield option, read(option, [text], option.variable)


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
    replaced = {Option(old, int, 0).variable: OPTIONS[now] for old, now in REPLACED.items()}
    bare = [name.removeprefix(PREFIX) for name in known]

    def meant(name: str) -> str:
        if name in replaced:
            return replaced[name].variable
        near = get_close_matches(name.removeprefix(PREFIX), bare, 1)
        return PREFIX + near[0] if near else ""

    return {name: meant(name) for name in unknown}
