"""`tokenlane simulate`: the fleet alone, until a signal ends it."""

import asyncio
import signal
import sys

import uvloop

from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.simulated_fleet import SimulatedFleet


async def serve(settings: SimulatorSettings, host: str, port: int, replicas: int) -> None:
    """Run until SIGTERM or SIGINT; print when each replica is ready."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    async with SimulatedFleet(settings) as fleet:
        for index, url in enumerate(await fleet.start(replicas, port, host=host)):
            sys.stdout.write(f"replica {index} ready at {url} (model {settings.model})\n")
        sys.stdout.flush()
        await ended.wait()


def run(settings: SimulatorSettings, host: str, port: int, replicas: int) -> None:
    """As `serve`, from a process without a loop. Raise ConfigError, OSError."""
    uvloop.run(serve(settings, host, port, replicas))
