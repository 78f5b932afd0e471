"""Logs go to stderr, named after the process, and cannot hurt anyone."""

import logging
import subprocess
import sys

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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.endswith("WARNING worker-3 channel lost")


def test_a_closed_stderr_is_no_error() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, "close"], capture_output=True, check=True)
    assert logging.raiseExceptions  # this process was not touched
