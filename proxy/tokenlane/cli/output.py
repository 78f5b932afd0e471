"""Output of the verbs: results on stdout, errors on stderr."""

import io
import sys

from tokenlane.telemetry.log.setup import printable


def say(line: str) -> None:
    """Print a line on stdout. What would begin another or steer a terminal is escaped: replicas say
    how their models are called."""
    take_any_letter()
    try:
        print(printable(line), flush=True)
    except OSError:
        # A closed pipe is no reason to stop serving.
        pass


def say_lines(text: str) -> None:
    """Print several lines on stdout."""
    for line in text.split("\n"):
        say(line)


def take_any_letter() -> None:
    """Show what the encoding of stdout does not have as a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def complain(line: str) -> None:
    """Print a line on stderr, under the program's name."""
    print(f"tokenlane: {line}", file=sys.stderr)
