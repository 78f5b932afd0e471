"""What setup.py gives the compiler, and what it tells it about the code that mypyc writes."""

import ast
import re
from pathlib import Path

import mypyc

from tests.paths import ROOT


def test_the_calls_of_failures_are_mypycs() -> None:
    """One by another name would be declared, and apply to nothing: builds would not tell."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    declared = set(re.findall(r"^COLD void (CPy_\w+)", setup, re.MULTILINE))
    header = (Path(mypyc.__file__).parent / "lib-rt" / "CPy.h").read_text(encoding="utf-8")
    assert declared
    assert declared <= set(re.findall(r"^void (CPy_\w+)", header, re.MULTILINE))


def compiled_modules() -> list[Path]:
    """Return the modules that setup.py lists."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED":
            return [ROOT / name for name in ast.literal_eval(node.value)]
    raise AssertionError("setup.py lists no modules")


def variables(source: str) -> list[str]:
    """Return the names in capitals that a module assigns to without saying that they are final."""
    found = []
    for node in ast.parse(source).body:
        targets: list[ast.expr]
        if isinstance(node, ast.AnnAssign):
            targets = [node.target] if not ast.unparse(node.annotation).startswith("Final") else []
        elif isinstance(node, ast.Assign) and "TypeVar" not in ast.unparse(node.value):
            targets = node.targets
        else:
            continue
        names = [
            one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)
        ]
        found += [name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)]
    return found


def test_constants_of_compiled_modules_are_final() -> None:
    """Compiled code looks up any other name in the module's dictionary each time."""
    assert variables("A = 1\n_B: int = 2\nC, D = 3, 4\nE: Final = 5\nF: Final[int] = 6") == [
        "A", "_B", "C", "D",
    ]  # fmt: skip
    found = {path.name: variables(path.read_text(encoding="utf-8")) for path in compiled_modules()}
    assert len(found) > 50
    assert {name: names for name, names in found.items() if names} == {}


def test_compiled_classes_have_no_cached_properties() -> None:
    """mypyc makes properties of them, which run each time: 15 ms for one that compiles a
    template."""
    named = [path.name for path in compiled_modules() if "cached_property" in path.read_text()]
    assert named == []
