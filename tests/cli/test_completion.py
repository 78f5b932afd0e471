"""Completion scripts, loaded by the real shells where they are installed."""

import os
import pty
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenlane.cli.completion import script
from tokenlane.cli.main import main, parser
from tokenlane.config.options import OPTIONS

SHELLS = ["bash", "zsh", "fish"]
OFFERS = [
    ("tokenlane pri", ["print-config"]),
    ("tokenlane top --adm", ["--admin", "--admin-host", "--admin-port", "--admin-token-file"]),
    ("tokenlane completion f", ["fish"]),
    ("tokenlane serve --worker", ["--worker-urls", "--workers"]),
    ("tokenlane serve --log-format t", ["text"]),
    ("tokenlane serve --policy sess", ["session"]),
    ("tokenlane serve here/sett", ["here/settings.yaml"]),
    ("tokenlane serve --server-share-port t", ["true"]),
    ("tokenlane serve --config here/sett", ["here/settings.yaml"]),
    ("tokenlane replay here/sett", ["here/settings.yaml"]),
    ("tokenlane replicas drain gpu", ["gpu-7:8000"]),
]
# In place of the program, for what asks a gateway.
REPLICAS = "gpu-7:8000  up  (static)"


def _program(shell: str) -> str:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    return program


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_flag_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for verb in ("serve", "demo", "check-config", "print-config", "doctor", "top", "completion"):
        assert verb in text
    for option in OPTIONS.values():
        assert option.flag.removeprefix("--") in text
    assert "until-eof" not in text  # hidden from the help


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_it(shell: str) -> None:
    done = subprocess.run(
        [_program(shell), "-n"],
        input=script(shell, parser()),
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _bash(line: str, cwd: Path) -> list[str]:
    ask = (
        f"tokenlane() {{ echo '{REPLICAS}'; }}\n"
        + script("bash", parser())
        + f"\nCOMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _shtab_tokenlane;"
        + ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [_program("bash"), "-c", ask], cwd=cwd, text=True, capture_output=True, check=True
    )
    return sorted(done.stdout.split())


def _fish(line: str, cwd: Path) -> list[str]:
    asked = f"function tokenlane; echo '{REPLICAS}'; end\n" + script("fish", parser())
    ask = f"{asked}\ncomplete -C '{line}'"
    done = subprocess.run(
        [_program("fish"), "--no-config"],
        input=ask,
        cwd=cwd,
        env=os.environ | {"HOME": str(cwd)},
        text=True,
        capture_output=True,
        check=True,
    )
    return sorted(row.partition("\t")[0] for row in done.stdout.splitlines())


@pytest.mark.parametrize("ask", [_bash, _fish])
@pytest.mark.parametrize(("line", "offered"), OFFERS)
def test_it_offers(
    ask: Callable[[str, Path], list[str]], line: str, offered: list[str], tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/settings.yaml").touch()
    assert ask(line, tmp_path) == offered


@pytest.mark.slow
@pytest.mark.parametrize("load", ['eval "$(cat script)"', "source script"])
def test_zsh_completes_what_is_typed(load: str, tmp_path: Path) -> None:
    """On a terminal, as zsh has no way to ask. A function in place of the program keeps what the
    line became."""
    (tmp_path / "script").write_text(script("zsh", parser()))
    (tmp_path / "here").mkdir()
    (tmp_path / "here/settings.yaml").touch()
    alone = [(line, offered[0]) for line, offered in OFFERS if len(offered) == 1]
    lines = [
        "autoload -Uz compinit; compinit -u -D",
        f"tokenlane() {{ [[ $* == replicas ]] && print '{REPLICAS}' || print -r -- $* >> typed }}",
        load,
        *(f"{line}\t" for line, _ in alone),
        "exit",
    ]
    ours, its = pty.openpty()
    with subprocess.Popen(
        [_program("zsh"), "-f", "-i"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path), "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ):
        os.close(its)
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # it has ended
            os.close(ours)
    wanted = [[*line.split()[1:-1], offered] for line, offered in alone]
    typed = (tmp_path / "typed").read_text().splitlines()
    assert [line.split() for line in typed] == wanted, shown.decode()
