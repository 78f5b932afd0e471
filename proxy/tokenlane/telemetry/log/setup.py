"""Logging: plain text on stderr, one line per event, nothing on the data path.

Invariants:
- A log line never holds request or response bytes, header values or secrets.
- A failing stderr (closed, full) never reaches the caller.
"""

import logging
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


def setup_logs(process: str) -> None:
    """Sends this process's log lines to stderr, named after the process."""
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT.replace("%(name)s", f"{process} %(name)s")))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # One line per probe or scrape is noise.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
