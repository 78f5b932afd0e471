"""Output of the verbs: results on stdout, errors on stderr."""

import sys


def say(line: str) -> None:
    """Print a line on stdout."""
    try:
        print(line, flush=True)
    except OSError:
        # A closed pipe is no reason to stop serving.
        pass


def complain(line: str) -> None:
    """Print a line on stderr, under the program's name."""
    print(f"tokenlane: {line}", file=sys.stderr)
