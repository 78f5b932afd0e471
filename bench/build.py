"""Another name of `python -m bench build`, for scripts: `python -m bench.build`."""

import sys

from bench.catalogue import start

if __name__ == "__main__":
    start("build", sys.argv[1:])
