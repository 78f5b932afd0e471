"""A reader of the few Go-template constructs that the chart is written in: enough to render it.

It is not Helm: it knows `include`, `toYaml`, `nindent`, `quote`, `default`, `sha256sum`, paths from
`.`, `if [not]`, `with`, `define` and trimmed whitespace, and fails at anything else. What it makes
is held against Helm's own by `make test-deploy`.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import yaml


class Unknown(Exception):
    """A construct that this reader does not know, or a value that is not there."""


def _tokens(text: str) -> list[tuple[str, str]]:
    """("text", …) and ("tag", …), with whitespace trimmed where `{{-` and `-}}` say so."""
    made: list[tuple[str, str]] = []
    at, trim = 0, False
    for tag in re.finditer(r"{{(-?)\s*(.*?)\s*(-?)}}", text, re.DOTALL):
        between = text[at : tag.start()]
        between = between.lstrip() if trim else between
        made += [("text", between.rstrip() if tag[1] else between), ("tag", tag[2])]
        at, trim = tag.end(), bool(tag[3])
    made.append(("text", text[at:].lstrip() if trim else text[at:]))
    return made


class Chart:
    """A chart on disk, with values laid on its own."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self._folder = folder
        about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
        chart = {name[0].upper() + name[1:]: value for name, value in about.items()}
        own = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
        for path, value in values.items():
            *sections, last = path.split("__")
            place = own
            for name in sections:
                place = place[name]
            place[last] = value
        release = {"Name": "lane", "Namespace": "default", "Service": "Helm"}
        self._dot = {"Values": own, "Chart": chart, "Release": release}
        self._defined: dict[str, list[tuple[str, str]]] = {}
        self._render(_tokens((folder / "templates" / "_helpers.tpl").read_text()), self._dot)

    def objects(self) -> list[dict[str, Any]]:
        """Everything the chart makes."""
        made = []
        for path in sorted((self._folder / "templates").glob("*.yaml")):
            text = self._render(_tokens(path.read_text(encoding="utf-8")), self._dot)
            made += [one for one in yaml.safe_load_all(text) if one is not None]
        return made

    def _render(self, tokens: list[tuple[str, str]], dot: Any) -> str:
        said: list[str] = []
        at = 0
        while at < len(tokens):
            kind, text = tokens[at]
            at += 1
            if kind == "text":
                said.append(text)
                continue
            word, _, rest = text.partition(" ")
            if word in {"if", "with", "define"}:
                end = _end(tokens, at)
                inner, at = tokens[at:end], end + 1
                if word == "define":
                    self._defined[rest.strip('"')] = inner
                    continue
                value = self._value(rest.removeprefix("not "), dot)
                if bool(value) != rest.startswith("not "):
                    said.append(self._render(inner, value if word == "with" else dot))
            else:
                said.append(self._text(self._value(text, dot)))
        return "".join(said)

    def _text(self, value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _value(self, expression: str, dot: Any) -> Any:
        first, *functions = (part.strip() for part in expression.split("|"))
        value = self._first(first, dot)
        for function in functions:
            name, _, argument = function.partition(" ")
            value = self._call(name, argument, value, dot)
        return value

    def _first(self, words: str, dot: Any) -> Any:
        name, _, rest = words.partition(" ")
        if name == "include":
            template, where = rest.split()
            return self._render(self._defined[template.strip('"')], self._path(where, dot))
        if name == "toYaml":
            return yaml.safe_dump(self._path(rest, dot)).rstrip("\n")
        return self._path(words, dot)

    def _call(self, name: str, argument: str, value: Any, dot: Any) -> Any:
        match name:
            case "nindent":
                indent = " " * int(argument)
                lines = str(value).split("\n")
                return "\n" + "\n".join(indent + line if line else line for line in lines)
            case "quote":
                return json.dumps(str(value))
            case "default":
                return value or self._path(argument, dot)
            case "sha256sum":
                return hashlib.sha256(str(value).encode()).hexdigest()
        raise Unknown(name)

    def _path(self, path: str, dot: Any) -> Any:
        if not re.fullmatch(r"\.[\w.]*", path):
            raise Unknown(path)
        value = dot
        for name in path.split(".")[1:]:
            if name:
                if not isinstance(value, dict) or name not in value:
                    raise Unknown(f"{path}: nothing there")
                value = value[name]
        return value


def _end(tokens: list[tuple[str, str]], at: int) -> int:
    """Where the `end` of a block that begins before `at` stands."""
    depth = 1
    while True:
        kind, text = tokens[at]
        if kind == "tag" and text.partition(" ")[0] in {"if", "with", "define"}:
            depth += 1
        elif (kind, text) == ("tag", "end"):
            depth -= 1
            if not depth:
                return at
        at += 1
