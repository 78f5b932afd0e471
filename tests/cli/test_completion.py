"""Completion scripts, loaded by the real shells where they are installed."""

import shutil
import subprocess

import pytest

from tokenlane.cli.completion import script
from tokenlane.cli.main import main, parser
from tokenlane.config.options import OPTIONS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_flag_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for verb in ("serve", "demo", "check-config", "print-config", "doctor", "top", "completion"):
        assert verb in text
    for option in OPTIONS.values():
        assert option.flag.removeprefix("--") in text
    assert "until-eof" not in text  # it is nobody's to type
    assert shell in text.splitlines()[0] or shell in text.splitlines()[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_it(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    done = subprocess.run(
        [program, "-n"], input=script(shell, parser()), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tokenlane", "pri"], ["print-config"]),
        (["tokenlane", "top", "--adm"], ["--admin", "--admin-host", "--admin-port"]),
        (["tokenlane", "completion", "f"], ["fish"]),
        (["tokenlane", "serve", "--worker"], ["--worker-urls", "--workers"]),
    ],
)
def test_bash_offers(words: list[str], offered: list[str]) -> None:
    program = shutil.which("bash")
    if program is None:
        pytest.skip("needs bash")
    ask = (
        script("bash", parser())
        + f"\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _tokenlane;"
        + ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([program, "-c", ask], text=True, capture_output=True, check=True)
    assert sorted(done.stdout.split()) == offered
