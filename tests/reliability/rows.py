"""The rows of rows.toml and the tests that carry their ids, found in the sources.

Invariants:
- A test says which rows it keeps; rows.toml names no test, so the two cannot drift apart.
- Nothing is imported to find that out, except the corpus, whose cases are tests.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conformance.corpus import cases
from tests.paths import ROOT

TESTS = ROOT / "tests"
_FILE = Path(__file__).with_name("rows.toml")


@dataclass(frozen=True)
class Row:
    """exception: why no test keeps it, or None."""

    id: str
    promise: str
    exception: str | None = None


def read() -> dict[str, Row]:
    """All rows, in order."""
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {name: Row(name, **fields) for name, fields in table.items()}


def _ids(decorators: list[ast.expr]) -> Iterator[str]:
    for one in decorators:
        if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.row":
            for argument in one.args:
                assert isinstance(argument, ast.Constant)
                yield str(argument.value)


@cache
def marked() -> dict[str, list[str]]:
    """Row id -> `file::test` of all tests that carry it."""
    found: dict[str, list[str]] = {}
    for case in cases():
        found[case.row] = ["tests/conformance/test_corpus.py::test_case"]
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.row(" not in text:
            continue
        file = path.relative_to(TESTS.parent).as_posix()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in _ids(node.decorator_list):
                    assert re.match("test_", node.name), f"{file}: {node.name} is no test"
                    found.setdefault(row, []).append(f"{file}::{node.name}")
    return found
