"""The rooms of the house: what import-linter does not check."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "proxy" / "tokenlane"
# Tables: one row a setting.
LONG = {"config/settings.py"}


def sources() -> list[Path]:
    """All files of the package, below it."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def test_the_top_has_few_modules_and_rooms() -> None:
    modules = [path for path in sources() if len(path.parts) == 1]
    rooms = {path.parts[0] for path in sources() if len(path.parts) > 1}
    assert len(modules) <= 6
    assert len(rooms) <= 18


def test_every_room_says_what_it_is_for() -> None:
    silent = [
        str(path)
        for path in sources()
        if path.name == "__init__.py" and len((PACKAGE / path).read_text(encoding="utf-8")) < 60
    ]
    assert silent == []


def test_files_are_short() -> None:
    written = [
        path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}
    ]
    long = {
        path.relative_to(PACKAGE).as_posix()
        for path in written
        if len(path.read_text(encoding="utf-8").splitlines()) > 350
    }
    assert long <= LONG


def test_file_names_are_their_own() -> None:
    names = Counter(path.name for path in sources() if path.name != "__init__.py")
    twice = {name for name, count in names.items() if count > 1}
    assert len(twice) <= 12, twice
    assert [path for path in sources() if path.stem == path.parent.name] == []


def test_the_source_root_is_no_package(tmp_path: Path) -> None:
    """`proxy.tokenlane` would be a second copy of every module, so lint refuses its name."""
    assert not (ROOT / "proxy" / "__init__.py").exists()
    for line in ("import proxy.tokenlane.errors", "from proxy.tokenlane import errors"):
        (tmp_path / "second.py").write_text(f"{line}\n")
        ruff = Path(sys.executable).with_name("ruff")
        if not ruff.exists():
            pytest.skip("ruff is installed with the development requirements")
        done = subprocess.run(
            [ruff, "check", "--config", ROOT / "pyproject.toml", "--select", "TID251", tmp_path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "TID251" in done.stdout
