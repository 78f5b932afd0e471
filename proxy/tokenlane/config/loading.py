"""Settings out of a file, the environment and the command line, each value with where it is from.

Invariants:
- Defaults, then the file, then variables, then flags; the last word counts.
- Every mistake in a file is found at once, each named with file, line, path and what to do.
- Nothing is guessed: an unknown key is an error, however clear what was meant.
"""

import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints

import msgspec
import yaml

from tokenlane.config.options import (
    OPTIONS,
    REPLACED,
    from_environment,
    leaves,
    options_of,
    wanted,
)
from tokenlane.config.settings import Settings
from tokenlane.config.yaml_size import bound
from tokenlane.errors import ConfigError

DEFAULT = "default"
# What was meant is looked for among all there is, but not for every line of a file of another kind.
_HINTS_LIMIT_COUNT = 20
Path_ = tuple[str | int, ...]


class ConfigProblems(ConfigError):
    """Several mistakes in one file; `problems` are their sentences."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - 1
        tail = f" (and {more} more: tokenlane check-config names them all)" if more else ""
        super().__init__(problems[0] + tail)
        self.problems = problems


class LoadedSettings(msgspec.Struct, frozen=True):
    """Settings, and by dotted path where each came from: default, FILE:LINE, a variable, a flag."""

    settings: Settings
    origins: dict[str, str]


class _File:
    """A file's values, what is wrong with them, and the line of everything in it. node: as YAML
    read them; without it nothing has a line."""

    def __init__(self, path: Path, values: dict[str, Any], node: yaml.Node | None = None) -> None:
        self.path = path
        self._lines: dict[Path_, int] = {}
        self.values = values
        self.problems: list[str] = []
        self._inside: set[int] = set()
        self._unknown_count = 0
        if self._note(node, ()):
            self.problems += self._check(values, Settings, ())

    @classmethod
    def read(cls, path: Path, text: str) -> Self:
        """What stands in a file. Raises ConfigError where that is no mapping in YAML."""
        try:
            loader = yaml.SafeLoader(text)
            try:
                node = loader.get_single_node()
                bound(node, path)
                values = loader.construct_document(node) if node is not None else None
            finally:
                loader.dispose()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}:{mark.line + 1}" if mark else str(path)
            raise ConfigError(
                f"{where}: is not YAML ({getattr(error, 'problem', None) or 'unreadable'})"
            ) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError) as error:
            # PyYAML lets through what its constructors raise: 0000-00-00 is a date to it.
            raise ConfigError(f"{path}: holds a value that YAML cannot mean ({error})") from None
        if values is None:
            return cls(path, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: the top level must be a mapping of settings")
        return cls(path, values, node)

    def _note(self, node: Any, path: Path_) -> bool:
        """Where everything is, from here down. False where something holds itself, as aliases
        can: then there is no end to looking at it."""
        if id(node) in self._inside:
            self.problems.append(f"{self.where(path)}: {_dotted(path)}: holds itself (by an alias)")
            return False
        self._inside.add(id(node))
        finite = True
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in seen and name != "<<":
                    self.problems.append(
                        f"{self.path}:{line}: {_dotted((*path, name))}: given twice, first in line"
                        f" {seen[name]}; the last would count"
                    )
                seen[name] = line
                self._lines[*path, name] = line
                finite = self._note(value, (*path, name)) and finite
        elif isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self._lines[*path, place] = item.start_mark.line + 1
                finite = self._note(item, (*path, place)) and finite
        self._inside.discard(id(node))
        return finite

    def where(self, path: Path_) -> str:
        """FILE:LINE of a value, or of what it is in."""
        while path and path not in self._lines:
            path = path[:-1]
        return f"{self.path}:{self._lines[path]}" if path else str(self.path)

    def _check(self, value: Any, kind: Any, path: Path_) -> Iterator[str]:
        """The sentences of all that is wrong from here down."""
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if not isinstance(value, dict):
                # `server:` with nothing below it is a section of defaults to its author.
                if value is not None or len(path) != 1:
                    yield self._wrong(value, kind, path)
                return
            yield from self._section(value, kind, path)
        elif get_origin(kind) is dict and isinstance(value, dict):
            for name, below in value.items():
                yield from self._check(below, get_args(kind)[1], (*path, str(name)))
        elif get_origin(kind) is tuple and isinstance(value, list):
            for place, below in enumerate(value):
                yield from self._check(below, get_args(kind)[0], (*path, place))
        else:
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                yield self._wrong(value, kind, path)

    def _section(
        self, value: dict[Any, Any], kind: type[msgspec.Struct], path: Path_
    ) -> Iterator[str]:
        kinds = get_type_hints(kind)
        fine = True
        for name, below in value.items():
            if name in kind.__struct_fields__:
                problems = list(self._check(below, kinds[name], (*path, name)))
            else:
                problems = [self._unknown(str(name), kind, path)]
            fine = fine and not problems
            yield from problems
        if fine:
            # Values that are well each by itself, but not together, or not there.
            filled = {name: below for name, below in value.items() if below is not None}
            try:
                msgspec.convert(filled, kind)
            except msgspec.ValidationError as error:
                said, _, at = str(error).partition(" - at `$.")
                here = (*path, *re.findall(r"^\w+", at))
                yield ": ".join(filter(None, (self.where(here), _dotted(here), said)))

    def _wrong(self, value: Any, kind: Any, path: Path_) -> str:
        given = "empty" if value is None else {bool: "true or false", int: "a number",
            float: "a number", str: "text", list: "a list", dict: "a mapping"}.get(
            type(value), "something else")  # fmt: skip
        return f"{self.where(path)}: {_dotted(path)}: must be {wanted(kind)}, and is {given}"

    def _unknown(self, name: str, kind: type[msgspec.Struct], path: Path_) -> str:
        here = (*path, name)
        self._unknown_count += 1
        looks = self._unknown_count <= _HINTS_LIMIT_COUNT
        meant = suggestion(_dotted(here), name, kind, path) if looks else None
        hint = f"did you mean {meant}?" if meant else f"known here: {_known(kind)}"
        return f"{self.where(here)}: {_dotted(here)}: there is no such setting; {hint}"


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mapping by mapping; anything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check --config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None


def _dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _known(kind: type[msgspec.Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


def suggestion(dotted: str, name: str, kind: type[msgspec.Struct], path: Path_) -> str | None:
    """The setting that was probably meant: what does a former one's work, a like name here, the
    same name elsewhere."""
    if dotted in REPLACED:
        return REPLACED[dotted]
    near = difflib.get_close_matches(name, kind.__struct_fields__, 1, 0.6)
    if near:
        return _dotted((*path, near[0]))
    elsewhere = [known for known in OPTIONS if known.rpartition(".")[2] == name]
    return (
        elsewhere[0]
        if elsewhere
        else next(iter(difflib.get_close_matches(dotted, OPTIONS, 1, 0.8)), None)
    )


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, name = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[name] = value


def load(
    path: Path | None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """The settings in force.

    path: a YAML file. flags: by dotted path, (flag, value). environ: variables.
    Raises ConfigError, with file, line and path of what is wrong.
    """
    file = _File.read(path, _text(path)) if path is not None else None
    return _loaded(file, flags, environ)


def load_text(text: str, path: Path) -> LoadedSettings:
    """As `load`, of a file that was read already."""
    return _loaded(_File.read(path, text))


def load_values(values: dict[Any, Any], path: Path) -> LoadedSettings:
    """As `load`, of what YAML made of a file."""
    return _loaded(_File(path, values))


def _loaded(
    file: _File | None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    origins = dict.fromkeys(OPTIONS, DEFAULT)
    values: dict[str, Any] = {}
    if file is not None:
        if file.problems:
            raise ConfigProblems(file.problems)
        values = {name: value for name, value in file.values.items() if value is not None}
        for dotted in OPTIONS:
            below = file.values
            *sections, name = dotted.split(".")
            for section in sections:
                below = below.get(section) or {}
            if name in below:
                origins[dotted] = file.where(tuple(dotted.split(".")))
    given: dict[str, Any] = {}
    for option, value in from_environment(environ or {}):
        _put(given, option.path, value)
        origins[option.path] = option.variable
    over: dict[str, Any] = {}
    for dotted, (flag, value) in (flags or {}).items():
        _put(over, dotted, value)
        origins[dotted] = flag
    try:
        settings = msgspec.convert(merge(merge(values, given), over), Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file.path if file else 'command line'}: {error}") from None
    return LoadedSettings(settings, origins)


def placed(sentence: str, loaded: LoadedSettings) -> str:
    """A sentence that begins with a setting's path, with where that setting is from."""
    known = [path for path in loaded.origins if sentence.startswith((f"{path}:", f"{path} "))]
    origin = loaded.origins[known[0]] if known else DEFAULT
    return sentence if origin == DEFAULT else f"{origin}: {sentence}"


def printed(loaded: LoadedSettings) -> str:
    """The settings in force as YAML that can be loaded again, each line with its origin, and
    `restart` where a reload does not put it in force."""
    lines = []
    section = ""
    for dotted, value in leaves(loaded.settings):
        head, _, name = dotted.rpartition(".")
        if head and head != section:
            lines.append(f"{head}:")
        section = head
        text = yaml.safe_dump(
            msgspec.to_builtins(value), default_flow_style=True, width=sys.maxsize
        )
        text = text.removesuffix("...\n").rstrip()
        indent = "  " if head else ""
        live = "" if OPTIONS[dotted].live else "; restart"
        lines.append(f"{indent}{name}: {text}".ljust(44) + f"  # {loaded.origins[dotted]}{live}")
    return "\n".join(lines)


def schema(kind: type[Settings] = Settings) -> dict[str, Any]:
    """JSON Schema of the file, for editors."""
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
        place["properties"][name]["description"] = option.help + unit
    for section in made["$defs"].values():
        if "description" in section:  # a docstring, indented as in the source before Python 3.13
            section["description"] = inspect.cleandoc(section["description"])
    return made


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
