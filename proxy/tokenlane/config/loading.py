"""Settings from a file, the environment and the command line, each value with its origin.

Invariants:
- Defaults, then the file, then variables, then flags; the last word counts.
- Every mistake in all three is found at once; the correct values can still be used.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml

from tokenlane.config.options import OPTIONS, from_environment, leaves, options_of, read
from tokenlane.config.settings import Section, Settings
from tokenlane.config.settings_file import SettingsFile
from tokenlane.config.validation import WRONG, Validation, dotted
from tokenlane.errors import ConfigError, ConfigProblems

DEFAULT = "default"


class LoadedSettings(msgspec.Struct, frozen=True):
    """Settings, and by dotted path where each came from: default, FILE:LINE, a variable, a flag.
    lines: FILE:LINE of what is inside of one. problems: of what was given. wrong: the settings
    that these are about, which are left at their defaults."""

    settings: Settings
    origins: dict[str, str]
    lines: dict[str, str] = {}
    problems: Sequence[str] = ()
    wrong: Sequence[str] = ()

    def sound(self) -> "LoadedSettings":
        """Return the same. Raise ConfigProblems where there are any."""
        if self.problems:
            raise ConfigProblems(list(self.problems))
        return self

    def is_sound(self, path: str) -> bool:
        """Return whether nothing was wrong with a setting or what is in it."""
        return not any(_is_inside(path, wrong) or _is_inside(wrong, path) for wrong in self.wrong)

    def placed(self, sentence: str) -> str:
        """Return a sentence that begins with a setting's path, with where that setting is from."""
        known = self.lines | {path: one for path, one in self.origins.items() if one != DEFAULT}
        paths = [path for path in known if _is_inside(sentence, path)]
        return f"{known[max(paths, key=len)]}: {sentence}" if paths else sentence

    def blame(self, error: ConfigError) -> ConfigProblems:
        """Return an error about these settings with where each is from."""
        return ConfigProblems([self.placed(problem) for problem in error.problems])


def _is_inside(path: str, outer: str) -> bool:
    """Return whether a path, or a sentence that begins with one, is about a part of another."""
    return path.startswith(outer) and path[len(outer) : len(outer) + 1] in ("", ".", "[", ":", ",")


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, mapping by mapping; replace anything else."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def load(
    path: Path | None,
    flags: Mapping[str, list[str]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Return the settings in force.

    path: a YAML file. flags: the texts given, by dotted path. environ: variables.
    Raise ConfigError, with file, line and path of what is wrong.
    """
    return look(SettingsFile.read(path) if path is not None else None, flags, environ).sound()


def look(
    file: SettingsFile | None,
    flags: Mapping[str, list[str]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """As `load`, but mistakes come back as problems, beside what is right."""
    origins = dict.fromkeys(OPTIONS, DEFAULT)
    lines: dict[str, str] = {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    wrong: list[str] = []
    if file is not None:
        values = file.validation.right(file.values, Settings, ())
        problems, wrong = file.validation.problems, file.validation.wrong
        lines = {dotted(path): line for path, line in file.lines()}
        origins |= {path: line for path, line in lines.items() if path in origins}
    given = [(option, [text], option.variable) for option, text in from_environment(environ or {})]
    given += [(OPTIONS[path], texts, OPTIONS[path].flag) for path, texts in (flags or {}).items()]
    for option, texts, source in given:
        validation = Validation(lambda _, source=source: source)  # type: ignore[misc]  # its own
        try:
            path = tuple(option.path.split("."))
            value = validation.right(read(option, texts, source), option.kind, path)
        except ConfigError as error:
            problems.append(str(error))
            wrong.append(option.path)
            continue
        problems += validation.problems
        wrong += validation.wrong
        if value is not WRONG:
            values = merge(values, _nested(path, value))
            origins[option.path] = source
            laid = [(*path, name) for name in value] if isinstance(value, dict) else [path]
            for over in map(dotted, laid):
                lines = {one: line for one, line in lines.items() if not _is_inside(one, over)}
    if file is not None:
        # A misspelt setting is not reported as missing, too.
        wrong += [path for path in file.validation.meant if origins.get(path) == DEFAULT]
    settings, conflicts = _assembled(values)
    found = LoadedSettings(settings, origins, lines, problems, wrong)
    problems += map(found.placed, conflicts)
    return found


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = path
    return {first: _nested(tuple(rest), value) if rest else value}


def _assembled(values: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Build settings from values that are valid each by itself. Return also the conflicts between
    them."""
    try:
        return msgspec.convert(values, Settings), []
    except msgspec.ValidationError:
        pass
    settings = Settings()
    conflicts: list[str] = []
    kinds = get_type_hints(Settings, include_extras=True)
    for name, below in values.items():
        made = getattr(settings, name)
        if isinstance(made, Section):
            made = type(made)()
            inner = get_type_hints(type(made), include_extras=True)
            for field, value in below.items():
                msgspec.structs.force_setattr(made, field, msgspec.convert(value, inner[field]))
            conflicts += [f"{name}.{conflict}" for conflict in made.conflicts()]
        else:
            made = msgspec.convert(below, kinds[name])
        msgspec.structs.force_setattr(settings, name, made)
    return settings, conflicts


def printed(loaded: LoadedSettings) -> str:
    """Return the settings in force as YAML that can be loaded again, each line with its origin, and
    `restart` where a reload does not put it in force."""
    lines = []
    section = ""
    for path, value in leaves(loaded.settings):
        head, _, name = path.rpartition(".")
        if head and head != section:
            lines.append(f"{head}:")
        section = head
        text = yaml.safe_dump(
            msgspec.to_builtins(value), default_flow_style=True, width=sys.maxsize
        )
        text = text.removesuffix("...\n").rstrip()
        indent = "  " if head else ""
        live = "" if OPTIONS[path].live else "; restart"
        lines.append(f"{indent}{name}: {text}".ljust(44) + f"  # {loaded.origins[path]}{live}")
    return "\n".join(lines)


def schema(kind: type[Settings] = Settings) -> dict[str, Any]:
    """Return the JSON Schema of the file, for editors."""
    made = msgspec.json.schema(kind)
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tokenlane", **made}
    for option in options_of(kind).values():
        place: Any = made["$defs"][kind.__name__]
        *sections, name = option.path.split(".")
        for section in sections:
            reference = place["properties"][section].get("$ref")
            place["properties"][section].pop("default", None)
            place = made["$defs"][reference.rpartition("/")[2]]
        unit = f" ({option.unit})" if option.unit else ""
        field, words = place["properties"][name], option.metavar.split("|")
        field["description"] = option.help + unit
        # As `Validation` takes them.
        also = [{"enum": [False]}] * ("off" in words) + [{"type": "integer"}] * ("NUMBER" in words)
        if also:
            kinds = {key: field.pop(key) for key in ("type", "enum") if key in field}
            field["anyOf"] = [kinds, *also]
    for section in made["$defs"].values():
        if "description" in section:  # a docstring, indented as in the source before Python 3.13
            section["description"] = inspect.cleandoc(section["description"])
    return made
