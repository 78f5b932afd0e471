"""A gateway whose workers can be asked for their tasks (tests.soak.worker).

python -m tests.soak.serve SETTINGS.json
"""

import sys
from pathlib import Path

import msgspec
import uvloop

from proxy.settings import Settings
from proxy.supervisor import Supervisor
from proxy.telemetry.logs import setup_logs

WORKER = (sys.executable, "-m", "tests.soak.worker")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _run(settings: Settings) -> int:
    return await Supervisor(settings, _say, WORKER).run()


if __name__ == "__main__":
    setup_logs("supervisor")
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    sys.exit(uvloop.run(_run(given)))
