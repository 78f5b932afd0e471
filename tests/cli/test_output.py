"""What the verbs print, on whatever there is to print on."""

import os
import subprocess
import sys

import pytest

from tokenlane.cli.output import say_lines

SAYS = r"""
from tokenlane.cli.output import say
say("m\u6a21 \x1b[2J\r\nnext")
"""


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "m\u6a21"), ("latin-1", "m?")])
def test_no_name_begins_a_line_and_no_encoding_ends_it(encoding: str, name: str) -> None:
    path = os.pathsep.join(sys.path)
    env = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding}
    said = subprocess.check_output([sys.executable, "-c", SAYS], env=env)
    assert said.decode(encoding) == rf"{name} \x1b[2J\r\nnext" + "\n"


def test_several_lines_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say_lines("a\n\tb\n")
    assert capsys.readouterr().out == "a\n\\tb\n\n"
