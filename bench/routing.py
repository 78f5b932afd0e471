"""Another name of `python -m bench routing`, for scripts: `python -m bench.routing`."""

import sys

from bench.catalogue import start

if __name__ == "__main__":
    start("routing", sys.argv[1:])
