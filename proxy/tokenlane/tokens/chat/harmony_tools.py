"""Tools as gpt-oss sees them: TypeScript types, as openai-harmony makes them from JSON schemas.

Schemas with what is not known to be rendered alike (`oneOf`, defaults that are lists or objects)
raise Unrenderable.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tokenlane.protocols.prompt_fields import Unrenderable

_NAMES: Final = re.compile("[A-Za-z0-9_.-]+")
_PLAIN: Final = {
    "string": "string", "number": "number", "integer": "number", "boolean": "boolean",
}  # fmt: skip


def section(tools: list[dict[str, Any]]) -> str:
    """Return the part of the developer's message that names the tools. tools: as templates see
    them."""
    lines = ["## functions\n", "namespace functions {\n"]
    for tool in tools:
        function = tool["function"]
        name, schema = function["name"], function.get("parameters")
        if _NAMES.fullmatch(name) is None:
            raise Unrenderable("tool-shape")
        lines += [f"// {line}" for line in _lines(function.get("description") or "")]
        taken = "" if schema is None else f"_: {_type(schema, '')}"
        lines.append(f"type {name} = ({taken}) => any;\n")
    return "# Tools\n\n" + "\n".join([*lines, "} // namespace functions"])


def _lines(told: str) -> list[str]:
    if "\r" in told:
        raise Unrenderable("tool-shape")
    lines = told.split("\n")
    return lines if lines[-1] else lines[:-1]


def _type(schema: Any, indent: str) -> str:
    if not isinstance(schema, dict) or "oneOf" in schema:
        raise Unrenderable("tool-shape")
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = ["number" if one == "integer" else one for one in kind if isinstance(one, str)]
        if kinds:
            return " | ".join(kinds)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        if "items" not in schema:
            return "Array<any>"
        return f"{_type(schema['items'], indent)}[]"
    if kind == "string" and (choices := _choices(schema)):
        return " | ".join(f'"{choice}"' for choice in choices)
    return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: dict[str, Any], indent: str) -> str:
    told = schema.get("description")
    out = [f"{indent}// {told}\n"] if isinstance(told, str) else []
    out.append("{\n")
    properties, required = schema.get("properties"), schema.get("required")
    required = required if isinstance(required, list) else []
    for name, one in properties.items() if isinstance(properties, dict) else ():
        kind = _type(one, indent + "    ")
        if one.get("nullable") is True and "null" not in kind:
            kind += " | null"
        mark = "" if name in required else "?"
        out += [f"{indent}//{line}\n" for line in _comments(one)]
        out.append(f"{indent}{name}{mark}: {kind},{_default(one)}\n")
    return "".join([*out, indent, "}"])


def _comments(schema: dict[str, Any]) -> Iterator[str]:
    if isinstance(title := schema.get("title"), str):
        yield from (f" {title}", "")
    if isinstance(told := schema.get("description"), str):
        yield f" {told}"
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        yield " Examples:"
        yield from (f' - "{one}"' for one in examples if isinstance(one, str))


def _choices(schema: dict[str, Any]) -> list[str]:
    given = schema.get("enum")
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    if isinstance(default, str):
        some = isinstance(schema.get("enum"), list) and schema["enum"]
        return f" // default: {default}" if some else f' // default: "{default}"'
    if isinstance(default, bool) or default is None:
        return f" // default: {'null' if default is None else str(default).lower()}"
    if not isinstance(default, int | float) or "e" in repr(default) or abs(default) >= 1 << 63:
        raise Unrenderable("tool-shape")
    return f" // default: {default}"
