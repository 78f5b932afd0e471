"""The gateway as an operator runs it, but for one thing: its worker keeps the bench's beat.

python -m bench.tools.host --config FILE --beats FILE
"""

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop

from tokenlane.config.loading import load
from tokenlane.control.supervisor import Supervisor
from tokenlane.telemetry.log.setup import setup_logs


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(prog="python -m bench.tools.host", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--beats", type=Path, required=True)
    parsed = parser.parse_args()
    setup_logs("supervisor")
    settings = load(parsed.config).settings
    argv = (sys.executable, "-m", "bench.tools.beats", str(parsed.beats))

    async def run() -> int:
        return await Supervisor(settings, print, argv).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


if __name__ == "__main__":
    sys.exit(main())
