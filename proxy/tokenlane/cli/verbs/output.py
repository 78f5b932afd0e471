"""Output of the verbs: results on stdout, errors on stderr."""

import io
import sys

from tokenlane.telemetry.log.setup import printable


def say(text: str) -> None:
    """Print lines on stdout, whatever its encoding. What would steer a terminal is escaped:
    replicas say how their models are called."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print("\n".join(map(printable, text.split("\n"))), flush=True)
    except OSError:
        # A closed pipe is no reason to stop serving.
        pass


def complain(line: str) -> None:
    """Print a line on stderr, under the program's name."""
    print(f"tokenlane: {line}", file=sys.stderr)
