"""A gateway whose processes say how they are when they are asked (tests.soak.says), and which reads
its settings anew when their file changes.

python -m tests.soak.serve SETTINGS.json
"""

import os
import sys
from pathlib import Path

import msgspec
import uvloop

from tests.soak import says
from tokenlane.config.loading import LoadedSettings
from tokenlane.config.settings import Settings
from tokenlane.control.reload import Given
from tokenlane.control.supervisor import Supervisor
from tokenlane.errors import ConfigError
from tokenlane.telemetry.log.setup import setup_logs

WORKER = (sys.executable, "-m", "tests.soak.worker")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _read(file: Path) -> LoadedSettings:
    try:
        return LoadedSettings(msgspec.json.decode(file.read_bytes(), type=Settings), {})
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: {error}") from None


async def _run(file: Path) -> int:
    given = Given(file, lambda: _read(file))
    return await Supervisor(given.read().settings, _say, WORKER, given=given).run()


if __name__ == "__main__":
    setup_logs("supervisor")
    says.listen()
    os.environ.pop("PYTHONTRACEMALLOC", None)  # of this process alone: workers would crawl
    sys.exit(uvloop.run(_run(Path(sys.argv[1]))))
