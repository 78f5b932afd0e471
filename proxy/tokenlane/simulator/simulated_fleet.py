"""N replicas in one process, on one loop.

Invariants:
- Replicas share the tokenizer and the prompts already tokenized, nothing else: each has its own
  port, engine, cache and clock.
- When `start` returns, every replica answers; when the context ends, nothing is left.
"""

from pathlib import Path
from typing import Self

from tokenlane.simulator.endpoints import Endpoints, Stats, stats
from tokenlane.simulator.executions import ExecutionLog
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.prompts import Prompts
from tokenlane.simulator.replica import SimulatedReplica
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.tokenizer import Tokenizer


def load_tokenizer(settings: SimulatorSettings) -> Tokenizer:
    """Return the tokenizer that a fleet with these settings speaks. Raise ConfigError."""
    folder = Path(settings.folder) if settings.folder else demo_folder()
    return Tokenizer.load(settings.model, folder, fast=False)


class SimulatedFleet:
    """Used as an async context: `async with Fleet(settings) as fleet: urls = await fleet.start(4)`.

    tokenizer: one that is loaded already, instead of the settings' folder. Raises ConfigError
    for a folder that holds no tokenizer, OSError for a port in use.
    """

    def __init__(
        self, settings: SimulatorSettings | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.settings = settings or SimulatorSettings()
        self._prompts = Prompts(self.settings, tokenizer or load_tokenizer(self.settings))
        self.replicas: list[SimulatedReplica] = []
        path = self.settings.execution_log
        self._executions = ExecutionLog(path) if path else None

    def __repr__(self) -> str:
        return f"<Fleet {self.replicas!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, count: int, first_port: int = 0, *, host: str = "127.0.0.1") -> list[str]:
        """Start replicas on `first_port` and the ports after it (0: any free ones); returns the
        base URLs of these."""
        started = []
        for offset in range(count):
            replica = SimulatedReplica(
                self.settings, self._prompts, len(self.replicas), self._executions
            )
            self.replicas.append(replica)
            endpoints = Endpoints(replica, self.replicas)
            port = first_port + offset if first_port else 0
            await replica.start(endpoints.handle, host, port)
            started.append(replica.url)
        return started

    async def stop(self) -> None:
        """Close every port and connection."""
        for replica in self.replicas:
            await replica.stop()
        self.replicas.clear()
        self._prompts.close()
        if self._executions is not None:
            self._executions.close()
            self._executions = None

    def stats(self) -> list[Stats]:
        """Return the stats of each replica."""
        return [stats(replica) for replica in self.replicas]
