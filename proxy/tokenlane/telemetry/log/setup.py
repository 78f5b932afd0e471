"""Logging: plain text on stderr, one line per event, nothing on the data path.

Invariants:
- A log line never holds request or response bytes, header values or secrets.
- A line is one line, whoever chose its text: unprintable characters are escaped here. What follows
  a line (a traceback) is indented, so that nothing in it can look like one.
- A failing stderr (closed, full) never reaches the caller.
"""

import logging
import sys
import time
from typing import Any

FORMAT = "%(asctime)s %(levelname)-7s {process} %(name)s %(message)s"


class OneLine(logging.Formatter):
    """A formatter that escapes, with the time as in the access log."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line itself."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the indented traceback."""
        return _below(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Return the indented stack."""
        return _below(super().formatStack(stack_info))


def printable(text: str) -> str:
    """Return the text with every character that is neither visible nor a space escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def _below(text: str) -> str:
    return "\n".join(f"    {printable(line)}" for line in text.splitlines())


def setup_logs(process: str) -> None:
    """Send this process's log lines to stderr, named after the process."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT.format(process=process)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # One line per probe or scrape would be noise.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
