"""Logs go to stderr, named after the process, and cannot hurt anyone."""

import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tokenlane.telemetry.log.setup import printable

SCRIPT = """
import logging, sys
from tokenlane.telemetry.log.setup import setup_logs
setup_logs("worker-3")
setup_logs("worker-3")
if len(sys.argv) > 1:
    sys.stderr.close()
logging.getLogger("channel").warning("lost")
logging.getLogger("aiohttp.access").info("noise")
"""


def test_one_line_each_on_stderr() -> None:
    began = datetime.now(UTC)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    at, _, rest = line.partition(" ")
    assert began - timedelta(seconds=1) < datetime.fromisoformat(at) < datetime.now(UTC)
    assert at.endswith("Z")
    assert rest == "WARNING worker-3 channel lost"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a line", "a line"),
        ("naïve 字", "naïve 字"),
        ("a\nFAKE", "a\\nFAKE"),
        ("a\r\x1b[31m\x00\x7f", "a\\r\\x1b[31m\\x00\\x7f"),
        ("\x85\u2028\u202e", "\\x85\\u2028\\u202e"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_a_peer_chose_makes_no_line_of_its_own() -> None:
    script = """
import logging
from tokenlane.telemetry.log.setup import setup_logs
setup_logs("worker-3")
log = logging.getLogger("channel")
log.warning("%s was refused", "a\\n2026 WARNING forged")
try:
    raise ValueError("b\\n2026 WARNING forged")
except ValueError:
    log.exception("failed")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    assert [line.split("channel ")[1] for line in lines if not line.startswith("    ")] == [
        "a\\n2026 WARNING forged was refused",
        "failed",
    ]
    assert not any(line.startswith("2026 WARNING") for line in lines)


def test_a_closed_stderr_is_no_error() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, "close"], capture_output=True, check=True)
    assert logging.raiseExceptions  # this process was not touched
