"""`python -m tokenlane` is `tokenlane`."""

import sys

from tokenlane.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
