"""The wheel and the sdist, installed as a user would: beside another package named `proxy`.

TOKENLANE_DIST: a folder that holds them (`make release-check`); without it they are built here.
"""

import json
import os
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.deploy.demo import demo
from tests.paths import ROOT

pytest.importorskip("build.__main__", reason="make test-package installs it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
# PyPI's proxy.py, whose import name tokenlane must leave alone.
OTHER = "proxy.py==2.4.10"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheel for this Python and the sdist."""
    given = os.environ.get("TOKENLANE_DIST")
    folder = Path(given) if given else tmp_path_factory.mktemp("dist")
    if not given:
        run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    tag = "cp{}{}".format(*sys.version_info)
    (wheel,), (sdist,) = folder.glob(f"*-{tag}-{tag}-*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def run(*argv: str, **environ: str) -> str:
    """Run a command; return what it prints, fail with what it says."""
    env = {**os.environ, **environ}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder: Path, package: Path) -> Path:
    """Return the Python of a clean environment with the package and PyPI's proxy.py, made without
    a C compiler."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"
    run(*pip, "--require-hashes", "-r", str(ROOT / "requirements.txt"))
    run(*pip, "--no-deps", OTHER)
    run(*pip, "--no-deps", str(package), CC="no-such-compiler")
    return python


def build_of(python: Path) -> str:
    """Return what doctor says of the build."""
    argv = [str(python.with_name("tokenlane")), "doctor", "--backend", "http://127.0.0.1:9"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    (line,) = (line for line in said.splitlines() if "build:" in line)
    return line


@pytest.mark.parametrize(("kind", "build"), [("wheel", "compiled"), ("sdist", "plain")])
def test_it_serves_beside_another_package_named_proxy(
    kind: str, build: str, made: dict[str, Path], tmp_path: Path
) -> None:
    python = installed(tmp_path / "venv", made[kind])
    other = run(str(python), "-c", "import proxy; print(proxy.__file__, proxy.Proxy.__module__)")
    assert "site-packages/proxy/__init__.py proxy.proxy" in other
    assert f"build: {build}" in build_of(python)
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with demo([str(python.with_name("tokenlane"))], tmp_path) as port:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
            assert answer.headers["x-tokenlane-replica"]


def test_both_hold_the_same_package(made: dict[str, Path]) -> None:
    with zipfile.ZipFile(made["wheel"]) as wheel:
        listed = [name for name in wheel.namelist() if not name.endswith("/")]
        names = {name for name in listed if ".dist-info/" not in name}
    shipped = {name for name in names if not name.endswith(".so")}
    assert shipped < names
    with tarfile.open(made["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    sources = {
        path.relative_to(ROOT / "proxy").as_posix()
        for path in (ROOT / "proxy" / "tokenlane").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == sources
    assert {f"proxy/{name}" for name in sources} <= names
    assert {"README.md", "LICENSE", "setup.py", "pyproject.toml"} <= names
