"""The sources that the settings name, running.

Invariants:
- A source that the settings no longer name is dropped with its replicas; one that they still name
  the same way goes on undisturbed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Protocol

from tokenlane.config.settings import DiscoverySettings
from tokenlane.control.discovery.dns_names import target
from tokenlane.control.discovery.file import File
from tokenlane.control.discovery.kubernetes import Kubernetes, service
from tokenlane.control.roster import Roster
from tokenlane.errors import ConfigError

AGAIN_S = 5.0

log = logging.getLogger("discovery")


class Source(Protocol):
    """Says again and again what it knows."""

    async def run(self, want: Callable[[Iterable[str] | None], object]) -> None:
        """Until cancelled."""


def _dns() -> ModuleType:
    """Loaded where a name is to be looked up: its library takes 40 ms of a start."""
    from tokenlane.control.discovery import dns  # noqa: PLC0415

    return dns


def checks(settings: DiscoverySettings) -> Iterator[Callable[[], object]]:
    """Yield what raises ConfigError where a setting is wrong; nobody is asked."""
    for name in settings.dns:
        yield partial(target, name)
    if settings.dns or settings.dns_servers:
        yield lambda: _dns().resolver(settings.dns_servers)
    if settings.kubernetes_service:
        yield partial(service, settings)


def wanted(settings: DiscoverySettings) -> dict[str, Callable[[], Source]]:
    """By name, how each is made."""
    made: dict[str, Callable[[], Source]] = {}
    if settings.file:
        made[f"file {settings.file}"] = lambda: File(settings.file)
    for name in settings.dns:
        made[f"dns {name}"] = lambda name=name: _dns().Dns(name, settings)  # type: ignore[misc]  # its own name
    if settings.kubernetes_service:
        made[f"kubernetes {settings.kubernetes_service}"] = lambda: Kubernetes(settings)
    return made


class Discovery:
    """All sources. first: set once each has said something."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._settings = DiscoverySettings()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[str] = set()
        self.first = asyncio.Event()

    def configure(self, settings: DiscoverySettings) -> None:
        """From now on these."""
        same = settings == self._settings
        self._settings = settings
        sources = wanted(settings)
        for name in list(self._tasks):
            if name not in sources:
                self._tasks.pop(name).cancel()
                self._waiting.discard(name)
                self._roster.drop(name)
            elif not same:
                self._tasks.pop(name).cancel()
        for name, make in sources.items():
            if name not in self._tasks:
                self._waiting.add(name)
                self._tasks[name] = asyncio.get_running_loop().create_task(
                    self._keep(name, make), name=name
                )
        self._look()

    async def close(self) -> None:
        """Asks nobody any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, name: str, make: Callable[[], Source]) -> None:
        def want(urls: Iterable[str] | None) -> None:
            try:
                self._roster.want(name, urls)
            finally:
                self._waiting.discard(name)
                self._look()

        while True:
            try:
                await make().run(want)
            except ConfigError as error:
                log.error("%s: %s", name, error)  # noqa: TRY400 - the sentence says it all
            except Exception:
                log.exception("%s failed unexpectedly", name)
            await asyncio.sleep(AGAIN_S)

    def _look(self) -> None:
        if not self._waiting:
            self.first.set()
