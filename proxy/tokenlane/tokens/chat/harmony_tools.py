"""Tools as gpt-oss sees them: TypeScript types, as openai-harmony makes them from JSON schemas.

Schemas with what is not known to be rendered alike (`oneOf`, defaults that are lists or objects)
raise Unrenderable. How deeply they are nested is bounded where requests are decoded.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tokenlane.errors import Unrenderable

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
        taken: list[str] = []
        if schema is not None:
            taken.append("_: ")
            _add_type(taken, schema, "")
        lines.append(f"type {name} = ({''.join(taken)}) => any;\n")
    return "# Tools\n\n" + "\n".join([*lines, "} // namespace functions"])


def _lines(told: str) -> list[str]:
    if "\r" in told:
        raise Unrenderable("tool-shape")
    lines = told.split("\n")
    return lines if lines[-1] else lines[:-1]


def _add_type(out: list[str], schema: Any, indent: str) -> None:
    if not isinstance(schema, dict) or "oneOf" in schema:
        raise Unrenderable("tool-shape")
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = ["number" if one == "integer" else one for one in kind if isinstance(one, str)]
        if kinds:
            out.append(" | ".join(kinds))
            return
    if kind == "object":
        _add_object(out, schema, indent)
    elif kind == "array" and "items" in schema:
        _add_type(out, schema["items"], indent)
        out.append("[]")
    elif kind == "array":
        out.append("Array<any>")
    elif kind == "string" and (choices := _choices(schema)):
        out.append(" | ".join(f'"{choice}"' for choice in choices))
    else:
        out.append(_PLAIN.get(kind, "any") if isinstance(kind, str) else "any")


def _add_object(out: list[str], schema: dict[str, Any], indent: str) -> None:
    told = schema.get("description")
    if isinstance(told, str):
        out.append(f"{indent}// {told}\n")
    out.append("{\n")
    properties, required = schema.get("properties"), schema.get("required")
    required = required if isinstance(required, list) else []
    needed = frozenset([name for name in required if isinstance(name, str)])
    for name, one in properties.items() if isinstance(properties, dict) else ():
        if not isinstance(one, dict):
            raise Unrenderable("tool-shape")
        out += [f"{indent}//{line}\n" for line in _comments(one)]
        out.append(f"{indent}{name}{'' if name in needed else '?'}: ")
        start = len(out)
        _add_type(out, one, indent + "    ")
        if one.get("nullable") is True and not any("null" in part for part in out[start:]):
            out.append(" | null")
        out.append(f",{_default(one)}\n")
    out += (indent, "}")


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
