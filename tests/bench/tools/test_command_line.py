"""An experiment's options and its flags say the same."""

from pathlib import Path

import pytest

from bench.tools.command_line import Options
from bench.tools.processes import BenchError


def test_options_say_themselves_as_flags() -> None:
    given = Options("full", trace=Path("t"))
    assert given.argv() == ["--full", "--trace", "t"]
    assert Options().argv() == []
    with pytest.raises(BenchError, match="no folder"):
        Options(tokenizers=Path("/nonexistent")).models()
