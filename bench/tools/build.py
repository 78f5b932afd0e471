"""The compiled build that the benches measure, rebuilt whenever the sources changed.

    python -m bench build          into build/compiled (some minutes), see setup.py

Invariants:
- What is measured is what the sources say: a build that differs from them is never used.
- Where there is no C compiler, the plain modules are measured, and the output says so.
"""

import argparse
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench.tools.paths import ROOT
from bench.tools.processes import BenchError, say

FOLDER = ROOT / "build" / "compiled"
_MADE_BY = FOLDER / "made_by"


def _maker() -> bytes:
    """What a build is made by: setup.py, and the level that it is told."""
    level = os.environ.get("MYPYC_OPT_LEVEL", "")
    return (ROOT / "setup.py").read_bytes() + level.encode()


def is_fresh() -> bool:
    """Whether the build was made from the sources as they are, for this Python, at this level."""
    if not any(FOLDER.glob(f"*{sys.implementation.cache_tag}*.so")):
        return False
    if not _MADE_BY.is_file() or _MADE_BY.read_bytes() != _maker():
        return False
    sources = {
        path.relative_to(ROOT / "proxy"): path
        for path in (ROOT / "proxy" / "tokenlane").rglob("*.py")
    }
    built = {path.relative_to(FOLDER): path for path in (FOLDER / "tokenlane").rglob("*.py")}
    return sources.keys() == built.keys() and all(
        path.read_bytes() == built[name].read_bytes() for name, path in sources.items()
    )


@cache
def compiled() -> Path | None:
    """The folder of the compiled package, built if need be; None without a C compiler."""
    if is_fresh():
        return FOLDER
    if shutil.which(os.environ.get("CC", "cc")) is None:
        say("no C compiler here: the gateway is measured as plain Python")
        return None
    say("compiling the hot modules into build/compiled (some minutes) …")
    made = FOLDER.with_name(f"compiled-{os.getpid()}")
    for stale in (ROOT / "build").glob("lib*"):
        shutil.rmtree(stale)
    argv = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
        "--no-deps", "--no-build-isolation", "--target", str(made), str(ROOT),
    ]  # fmt: skip
    done = subprocess.run(
        argv,
        env={**os.environ, "TOKENLANE_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the compiled build failed:\n{done.stderr[-2000:]}")
    (made / _MADE_BY.name).write_bytes(_maker())
    shutil.rmtree(FOLDER, ignore_errors=True)
    made.rename(FOLDER)  # at once, so that nobody imports half a package
    return FOLDER


def main() -> None:
    """Build what is not there. Exit with a sentence where that fails."""
    argparse.ArgumentParser(
        prog="python -m bench build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    try:
        compiled()
    except BenchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
