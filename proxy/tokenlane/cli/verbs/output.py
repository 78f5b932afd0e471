"""What a verb says: its results on stdout, what is wrong on stderr."""

import sys


def say(line: str) -> None:
    """A line on stdout."""
    try:
        print(line, flush=True)
    except OSError:
        # Nobody reads what we say (a closed pipe): no reason to stop serving.
        pass


def complain(line: str) -> None:
    """A line on stderr, under the program's name."""
    print(f"tokenlane: {line}", file=sys.stderr)
