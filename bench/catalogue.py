"""What can be run by name, and which of it `make bench` runs.

Every module of `experiments` and `studies` is run alone: `python -m bench NAME [flags]`.
"""

import ast
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import iter_modules

from bench.tools.paths import ROOT
from bench.tools.processes import BenchError
from bench.tools.suite import Member

FOLDERS = ("experiments", "studies")
TOOLS = ("build", "docs")


def modules() -> dict[str, str]:
    """Return the modules that can be run, by their names."""
    found = {
        module.name: f"bench.{folder}.{module.name}"
        for folder in FOLDERS
        for module in iter_modules([str(ROOT / "bench" / folder)])
    }
    return found | {name: f"bench.tools.{name}" for name in TOOLS}


def source(module: str) -> Path:
    """Return the file that `python -m` runs for a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def summary(module: str) -> str:
    """Return the first line of a module's docstring, without importing the module."""
    path = source(module)
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return (doc or "").partition("\n")[0]


def start(name: str, flags: Sequence[str]) -> None:
    """Run one module as `python -m` does, with these flags. Raises BenchError for another name."""
    known = modules()
    if name not in known:
        raise BenchError(f"no such experiment: {name}; there are {', '.join(known)}")
    sys.argv[1:] = flags
    sys.modules.pop(known[name], None)  # imported by the catalogue; runpy warns of a second copy
    runpy.run_module(known[name], run_name="__main__", alter_sys=True)


def _member(name: str, expected_s: float) -> Member:
    return Member(name, modules()[name], expected_s)


MEMBERS = (
    _member("throughput", 65),
    _member("streams", 45),
    _member("bursts", 45),
    _member("ablation", 70),
    _member("burst", 40),
    _member("cache", 5),
    _member("cache_cap", 25),
    _member("barrier_request", 35),
    _member("barrier_threads", 20),
    _member("floor", 40),
    _member("lengths", 30),
    _member("starvation", 30),
    _member("arrivals", 30),
)


def chosen(names: Sequence[str]) -> list[Member]:
    """Return the members of these names in the suite's order, without names all of them. Raises
    BenchError for an unknown one."""
    known = {member.name for member in MEMBERS}
    if unknown := sorted(set(names) - known):
        raise BenchError(
            f"no such experiment: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    return [member for member in MEMBERS if not names or member.name in names]
