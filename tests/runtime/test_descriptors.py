"""A process takes the descriptors it may have."""

import subprocess
import sys

import pytest

SHOWN = (
    "import resource; from tokenlane.runtime.descriptors import raise_limit; raise_limit();"
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
)


@pytest.mark.parametrize(
    ("given", "taken"), [("100:500", "500 500"), ("400:400", "400 400"), ("500:400", "")]
)
def test_the_soft_limit_is_the_hard_one(given: str, taken: str) -> None:
    argv = ["prlimit", f"--nofile={given}", sys.executable, "-c", SHOWN]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == taken
