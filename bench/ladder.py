"""Another name of `python -m bench ladder`, for scripts: `python -m bench.ladder`."""

import sys

from bench.catalogue import start

if __name__ == "__main__":
    start("ladder", sys.argv[1:])
