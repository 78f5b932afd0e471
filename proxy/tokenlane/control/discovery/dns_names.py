"""Names of DNS and the replicas behind them. Pure.

`http://NAME:PORT`: each address of the name is a replica at that port. `http://_SERVICE._tcp.NAME`
without a port: SRV records say hosts and ports.

Invariants:
- A replica leaves when its address was missing from several answers in a row: one answer that
  lacks it, as of a server that has just started, takes nobody out.
- An answer without any address is no answer.
"""

from collections.abc import Collection, Iterable

import msgspec

from tokenlane.errors import ConfigError
from tokenlane.runtime.ports import split_url


class Target(msgspec.Struct, frozen=True):
    """What is looked up. port: None where SRV records say it."""

    scheme: str
    name: str
    port: int | None


def target(text: str) -> Target:
    """Raises ConfigError where it is none."""
    if "@" in text:  # first: what follows repeats it
        raise ConfigError("discovery.dns: a URL must not carry a user name or password")
    parts, port = split_url(text)
    name = parts.hostname or ""
    plain = not (parts.path.strip("/") or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not name or not plain:
        raise ConfigError(f"discovery.dns: {text!r} must look like http://NAME:PORT")
    if name.startswith("_"):
        if port is not None:
            raise ConfigError(f"discovery.dns: {text!r}: SRV records say the port; leave it out")
        return Target(parts.scheme, name, None)
    return Target(parts.scheme, name, port or (443 if parts.scheme == "https" else 80))


class Absences:
    """What a name's answers amount to. limit: answers in a row that may lack a replica."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._missing: dict[str, int] = {}

    def answered(self, urls: Collection[str]) -> Iterable[str]:
        """The replicas to be had, after one more answer; in a settled order."""
        if urls:
            for one in self._missing:
                self._missing[one] += 1
            self._missing.update(dict.fromkeys(urls, 0))
            self._missing = {
                one: times for one, times in self._missing.items() if times <= self._limit
            }
        return sorted(self._missing)
