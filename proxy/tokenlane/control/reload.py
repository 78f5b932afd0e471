"""Reload settings: on a signal, on request, and when their files change.

Invariants:
- Settings are read and checked whole. What is wrong anywhere keeps everything as it was, and is
  said: in the log with file and line, in the metrics, on the admin port.
- What needs a restart stays as it was, and is named.
- Files that change are read when they have stood still for one look: an editor that writes in
  place is not read half-way.
- One reload at a time; the files and the loop never wait for each other.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenlane.config.differences import Differences, changed
from tokenlane.config.keyring import admin_token, client_keys, replica_key
from tokenlane.config.loading import LoadedSettings
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Key, Settings
from tokenlane.config.tls import tls_files
from tokenlane.errors import ConfigError
from tokenlane.runtime.file_times import Stamps, stamps
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import Sample

LOOK_S = 0.5
OUTCOMES = ("applied", "unchanged", "refused")

log = logging.getLogger("reload")


class Given(msgspec.Struct, frozen=True):
    """Where settings come from. read: reads them all again; raises ConfigError."""

    file: Path | None
    read: Callable[[], LoadedSettings]


class InForce(msgspec.Struct, frozen=True):
    """What the gateway works with. keys: of clients; None where all may come in. token: for
    changes over the admin port."""

    settings: Settings
    keys: tuple[Key, ...] | None
    token: Secret | None = None


class ReloadReport(msgspec.Struct, frozen=True):
    """What became of a reload. changed: paths that are in force now. restart: paths that differ
    and need a restart. problems: why nothing is different, in sentences."""

    outcome: str
    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class ConfigRow(msgspec.Struct, frozen=True):
    """Where settings are from, and what became of them. loaded_at_s: Unix time. reloads: how many,
    by outcome."""

    file: str | None
    loaded_at_s: float
    reloads: dict[str, int]
    last: ReloadReport


def read_all(settings: Settings) -> InForce:
    """What the settings' files hold. Raises ConfigError."""
    replica_key(settings.upstream)  # workers read it themselves: no message carries it
    return InForce(settings, client_keys(settings.auth), admin_token(settings.admin))


def files_of(settings: Settings, file: Path | None) -> tuple[str, ...]:
    """All files that settings are read from."""
    named = (
        str(file or ""),
        settings.auth.keys_file,
        settings.upstream.api_key_file,
        settings.admin.token_file,
        *tls_files(settings.server, settings.upstream),
    )
    return tuple(name for name in named if name)


@dataclass(eq=False)
class Reloader:
    """Reads what was given again. check: raises ConfigError for settings that cannot be served.
    apply: puts them in force, or says why not (and then nothing is different)."""

    given: Given | None
    in_force: InForce
    check: Callable[[Settings], object]
    apply: Callable[[InForce], Awaitable[list[str]]]

    def __post_init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._file = self.given.file if self.given is not None else None
        self._read = stamps(files_of(self.in_force.settings, self._file))
        self._counts = Counter(dict.fromkeys(OUTCOMES, 0))
        self._loaded_at_s = time.time()
        # What was read last was refused where it was to be put in force.
        self._not_applied = False
        self.last: ReloadReport | None = None

    async def reload(self, why: str) -> ReloadReport:
        """Once, now. why: for the log."""
        async with self._one_at_a_time:
            return await self._counted(why)

    async def _counted(self, why: str) -> ReloadReport:
        report = self.last = await self._once()
        self._counts[report.outcome] += 1
        if report.outcome == "refused":
            for problem in report.problems:
                log.error("%s; the settings stay as they were: %s", why, problem)
        else:
            self._loaded_at_s = time.time()
            log.info("%s; %s", why, ", ".join(report.changed) or "nothing changed")
            if report.restart:
                log.warning("these need a restart: %s", ", ".join(report.restart))
        return report

    async def _once(self) -> ReloadReport:
        if self.given is None:
            return ReloadReport("refused", problems=("these settings came with the program",))
        seen = await asyncio.to_thread(stamps, self._read)
        now = self.in_force
        try:
            found, new = await asyncio.to_thread(self._look, self.given, now.settings)
        except ConfigError as error:
            self._read = seen
            return ReloadReport("refused", problems=tuple(error.problems))
        except Exception:
            # Whatever stands in a file, it must not stop a gateway that serves.
            log.exception("reading the settings failed unexpectedly")
            self._read = seen
            return ReloadReport("refused", problems=("an unexpected error; see the log",))
        files = files_of(found.settings, self._file)
        held = self._read
        self._read = {file: seen[file] if file in seen else stamps((file,))[file] for file in files}
        different = found.live
        if new.keys != now.keys and "auth.keys" not in different:
            different += ("auth.keys_file",)
        if not different and self._read == held and not self._not_applied:
            return ReloadReport("unchanged", restart=found.restart)
        try:
            problems = await self.apply(new)
        except ConfigError as error:  # a file that was there a moment ago
            problems = [str(error)]
        self._not_applied = bool(problems)
        if problems:
            return ReloadReport("refused", restart=found.restart, problems=tuple(problems))
        self.in_force = new
        return ReloadReport("applied", different, found.restart)

    def _look(self, given: Given, now: Settings) -> tuple[Differences, InForce]:
        """In a thread. Raises ConfigError."""
        loaded = given.read()
        try:
            self.check(loaded.settings)
            found = changed(now, loaded.settings)
            return found, read_all(found.settings)
        except ConfigError as error:
            raise loaded.blame(error) from None

    async def watch(self) -> None:
        """Reloads when a file has changed, until cancelled."""
        before: Stamps = self._read
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._one_at_a_time:
                now = await asyncio.to_thread(stamps, self._read)
                if now != self._read and now == before:
                    await self._counted("a file has changed")
            before = now

    def row(self) -> ConfigRow:
        """For people: the page, and `/status.json`."""
        return ConfigRow(
            str(self._file) if self._file is not None else None,
            round(self._loaded_at_s, 3),
            dict(self._counts),
            self.last or ReloadReport("applied"),
        )

    def samples(self) -> Iterator[Sample]:
        """For the control plane's metrics."""
        for outcome, count in self._counts.items():
            yield families.CONFIG_RELOADS, (outcome,), [float(count)]
        good = self.last is None or self.last.outcome != "refused"
        yield families.CONFIG_GOOD, (), [float(good)]
        yield families.CONFIG_LOADED, (), [self._loaded_at_s]
