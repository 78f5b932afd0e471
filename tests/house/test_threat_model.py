"""THREAT_MODEL.md names tests that exist, at least one for every threat."""

import ast
import re

from tests.reliability.rows import TESTS

_ROOT = TESTS.parent


def _tests(file: str) -> set[str]:
    tree = ast.parse((_ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_threat_has_a_test() -> None:
    text = (_ROOT / "THREAT_MODEL.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| threat" not in line]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert name in _tests(file), f"{file}::{name}"
