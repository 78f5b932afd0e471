"""What can be run by name, and which of it `make bench` and `make bench-engine` run.

Every module of `experiments`, `studies` and `engine` is run alone: `python -m bench NAME [flags]`.
"""

import ast
import math
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import iter_modules

from bench.tools.paths import ENGINE_RESULTS, RESULTS, ROOT
from bench.tools.processes import BenchError
from bench.tools.suite import SHORT_LIMIT_S, Laboratory, Member
from bench.tools.vllm_server import lending

FOLDERS = ("experiments", "studies", "engine")
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


# Of a part of the engine's laboratory, and of all of it, short and whole.
ENGINE_PART_S, ENGINE_SHORT_S, ENGINE_S = 880.0, 1_180.0, 5_400.0


def _member(name: str, expected_s: float, limit_s: float = math.inf, long_s: float = 0.0) -> Member:
    return Member(name, modules()[name], expected_s, limit_s, long_s)


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

ENGINE_MEMBERS = tuple(
    _member(name, expected_s, ENGINE_PART_S, long_s)
    for name, expected_s, long_s in (
        ("illusion", 100, 390),
        ("radix", 110, 145),
        ("barrier", 220, 670),
        ("barrier_grid", 160, 700),
        ("decomposition", 140, 305),
        ("starved_engine", 140, 695),
        ("own_tools", 50, 110),
        ("cpu_bound", 200, 680),
    )
)
BENCH = Laboratory(
    "tokenlane bench", MEMBERS, "short",
    {"smoke": math.inf, "short": SHORT_LIMIT_S, "full": math.inf}, RESULTS,
)  # fmt: skip
ENGINE = Laboratory(
    "tokenlane bench: the engine", ENGINE_MEMBERS, "full",
    {"smoke": math.inf, "short": ENGINE_SHORT_S, "full": ENGINE_S}, ENGINE_RESULTS, lending,
)  # fmt: skip
