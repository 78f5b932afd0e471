"""A file of replicas: a list of URLs in YAML or JSON, read when it changes.

Invariants:
- A mistake in the file is reported with the file's name, and the replicas stay unchanged.
- A file that is empty is one that is being written; a list without entries is `[]`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import yaml

from tokenlane.config.settings_file import place_of
from tokenlane.control.fleet_table import base_url
from tokenlane.errors import ConfigError
from tokenlane.runtime.file_times import Stamps, stamps

LOOK_S = 0.5

Want = Callable[[Iterable[str] | None], object]

log = logging.getLogger("discovery")


def read(path: Path) -> list[str] | None:
    """The URLs in it; None where it is empty. Raises ConfigError."""
    try:
        listed = yaml.safe_load(path.read_text(encoding="utf-8"))
        if listed is None:
            return None
        return [base_url(one) for one in msgspec.convert(listed, list[str])]
    except OSError as error:
        raise ConfigError(f"discovery.file: {path} cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{place_of(error, path)}: is not YAML") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError):
        # Also what PyYAML does not catch of its constructors: 2027-02-30 is a date to it.
        raise ConfigError(f"{path}: must be a list of http://HOST:PORT") from None


class File:
    """One file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def run(self, want: Want) -> None:
        """Until cancelled."""
        taken: Stamps | None = None
        before: Stamps = {}
        while True:
            now = await asyncio.to_thread(stamps, (str(self._path),))
            # Once it stands still for a look: whoever writes in place is not read half-way.
            if now != taken and (now == before or taken is None):
                taken = now
                try:
                    want(await asyncio.to_thread(read, self._path))
                except ConfigError as error:
                    want(None)
                    log.error("%s; its replicas stay as they were", error)  # noqa: TRY400 - the sentence says it all
            before = now
            await asyncio.sleep(LOOK_S)
