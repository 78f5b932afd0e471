"""The program `tokenlane`, whose supervisor takes a worker for hung after seconds."""

import sys

from tokenlane.cli.main import main
from tokenlane.control import workers

if __name__ == "__main__":
    workers.SILENT_LOOKS = 5
    sys.exit(main())
