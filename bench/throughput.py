"""Another name of `python -m bench throughput`, for scripts: `python -m bench.throughput`."""

import sys

from bench.catalogue import start

if __name__ == "__main__":
    start("throughput", sys.argv[1:])
