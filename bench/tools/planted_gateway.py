"""The gateway as an operator runs it, except that its workers have stalls planted in them.

    PLANT_STALL=... python -m bench.tools.planted_gateway VERB [flags]    (as `tokenlane` has them)
    PLANT_STALL=... python -m bench.tools.planted_gateway CHANNEL_FD      (one of its workers)

bench.tools.planted has what the variable says.
"""

import os
import sys
from functools import partial

from bench.tools.planted import PLANTED_GATEWAY, VARIABLE, Plan, Plant
from bench.tools.processes import BenchError, module
from tokenlane.cli import main as cli
from tokenlane.control import supervisor
from tokenlane.telemetry.stalls.stages import LOOP
from tokenlane.worker import main as worker


def main() -> int:
    """A worker where the argument is a descriptor, else the command line."""
    try:
        plan = Plan.parse(os.environ.get(VARIABLE, ""))
    except BenchError as error:
        sys.exit(str(error))
    if len(sys.argv) > 1 and sys.argv[1].isdecimal():
        LOOP.on_mark(Plant(plan).marked)
        worker.main()
    # `serve` makes one, and has no argument for what its workers are started with.
    ours = partial(supervisor.Supervisor, argv=module(PLANTED_GATEWAY))
    supervisor.Supervisor = ours  # type: ignore[assignment,misc]  # it is called, nothing else
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
