"""No deadline, age or order is taken from the wall clock: it may jump."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.row("O10")
def test_the_wall_clock_is_only_shown() -> None:
    found: dict[str, int] = {}
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("proxy/simulator"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time",
                "time.time_ns",
                "datetime.now",
                "datetime.utcnow",
                "time.localtime",
                "time.gmtime",
            ):
                found[name] = found.get(name, 0) + 1
    # `created` in the list of models; what a chat template may print.
    assert found.keys() <= {"proxy/gateway.py", "proxy/tokens/template.py"}
    assert found["proxy/gateway.py"] == 1
