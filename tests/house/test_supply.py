"""What is installed is what was locked, and runs on parsers in C."""

import os
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT


@pytest.mark.row("S11")
@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned_with_its_hashes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        assert re.match(r"[\w.\[\]-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line


@pytest.mark.row("S11")
def test_no_aiohttp_with_known_holes_is_locked() -> None:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    found = re.search(r"^aiohttp==(\d+)\.(\d+)\.(\d+) ", text, re.MULTILINE)
    assert found is not None
    assert tuple(map(int, found.groups())) >= (3, 14, 3)


@pytest.mark.row("S11")
@pytest.mark.slow
def test_nothing_starts_on_parsers_in_python() -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tokenlane",
            "serve",
            "--backend",
            "http://127.0.0.1:1",
            "--port",
            "0",
        ],
        env=os.environ | {"AIOHTTP_NO_EXTENSIONS": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("tokenlane: aiohttp runs without its C parser")
