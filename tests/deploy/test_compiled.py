"""What setup.py tells the compiler about the code that mypyc writes."""

import re
from pathlib import Path

import mypyc

from tests.paths import ROOT


def test_the_calls_of_failures_are_mypycs() -> None:
    """One by another name would be declared, and apply to nothing: builds would not tell."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    declared = set(re.findall(r"^COLD void (CPy_\w+)", setup, re.MULTILINE))
    header = (Path(mypyc.__file__).parent / "lib-rt" / "CPy.h").read_text(encoding="utf-8")
    assert declared
    assert declared <= set(re.findall(r"^void (CPy_\w+)", header, re.MULTILINE))
