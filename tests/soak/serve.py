"""A gateway whose processes say how they are when they are asked (tests.soak.says).

python -m tests.soak.serve SETTINGS.json
"""

import os
import sys
from pathlib import Path

import msgspec
import uvloop

from proxy.settings import Settings
from proxy.supervisor import Supervisor
from proxy.telemetry.logs import setup_logs
from tests.soak import says

WORKER = (sys.executable, "-m", "tests.soak.worker")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _run(settings: Settings) -> int:
    return await Supervisor(settings, _say, WORKER).run()


if __name__ == "__main__":
    setup_logs("supervisor")
    says.listen()
    os.environ.pop("PYTHONTRACEMALLOC", None)  # of this process alone: workers would crawl
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    sys.exit(uvloop.run(_run(given)))
