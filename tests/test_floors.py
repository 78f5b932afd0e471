"""The floors in pyproject.toml name every module: a new file cannot stand between floors."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def floors() -> list[set[str]]:
    """Module names of each floor, highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {one["id"]: one for one in config["tool"]["importlinter"]["contracts"]}
    return [set(re.findall(r"proxy[\w.]*", layer)) for layer in contracts["floors"]["layers"]]


def modules() -> list[str]:
    """Dotted names of the modules, packages by their own name."""
    names = []
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if path.name == "__init__.py":
            if path.read_text(encoding="utf-8").count("import") == 0:
                continue
            parts = parts[:-1]
        names.append(".".join(parts))
    return names


def on_floor(name: str, floor: set[str]) -> bool:
    """Whether a module, or a package around it, is listed."""
    return any(name == one or name.startswith(one + ".") for one in floor)


def test_every_module_stands_on_exactly_one_floor() -> None:
    counts = {name: sum(on_floor(name, floor) for floor in floors()) for name in modules()}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_the_page_on_architecture_names_every_module_of_the_top_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    own = [name.partition(".")[2] for name in modules() if name.count(".") == 1]
    assert [name for name in own if not re.search(rf"`{name}[`/]", page)] == []
