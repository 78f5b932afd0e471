"""Where the store is, as `fleet.store` says it. Pure.

    redis://[USER@]HOST[:PORT][/DB]
    redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT]…/SERVICE[/DB]
    redis+cluster://[USER@]HOST[:PORT],HOST[:PORT]…

Invariants:
- `valkey` may stand for `redis`; `rediss` and `valkeys` are the same over TLS.
- A password does not belong in a URL: settings are printed and shown.
"""

from enum import Enum
from urllib.parse import unquote, urlsplit

import msgspec

from tokenlane.errors import ConfigError
from tokenlane.runtime.ports import split_url

_DEFAULT_PORTS = {"": 6379, "sentinel": 26379, "cluster": 6379}


class StoreKind(Enum):
    """What answers there."""

    SERVER = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class StoreAddress(msgspec.Struct, frozen=True):
    """Where the store is. service: what sentinels call it."""

    kind: StoreKind
    nodes: tuple[tuple[str, int], ...]
    tls: bool = False
    user: str | None = None
    database: int = 0
    service: str = ""


def store_address(url: str) -> StoreAddress:
    """Read the setting. Raises ConfigError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("fleet.store: is no URL") from None
    store, _, kind = parts.scheme.partition("+")
    if store not in {"redis", "rediss", "valkey", "valkeys"} or kind not in _DEFAULT_PORTS:
        raise ConfigError("fleet.store: must look like redis://HOST:PORT")
    user, at, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise ConfigError(
            "fleet.store: must not hold a password; fleet.password_file names a file with it"
        )
    if parts.query or parts.fragment:
        raise ConfigError("fleet.store: must end with its path; settings of their own say the rest")
    path = [part for part in parts.path.split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else ""
    if kind == "sentinel" and not service:
        raise ConfigError("fleet.store: must name the sentinels' service, as …/SERVICE")
    if kind == "cluster" and path:
        raise ConfigError("fleet.store: a cluster has no databases")
    if len(path) > 1 or not all(part.isdecimal() for part in path):
        raise ConfigError("fleet.store: must end with the number of a database, if with anything")
    nodes = tuple(_node(host, _DEFAULT_PORTS[kind]) for host in hosts.split(","))
    if kind == "" and len(nodes) > 1:
        raise ConfigError("fleet.store: must name one host; redis+cluster:// takes several")
    return StoreAddress(
        StoreKind(kind),
        nodes,
        tls=store in {"rediss", "valkeys"},
        user=unquote(user) if at else None,
        database=int(path[0]) if path else 0,
        service=service,
    )


def _node(host: str, default_port: int) -> tuple[str, int]:
    parts, port = split_url(f"//{host}")
    if not parts.hostname:
        raise ConfigError("fleet.store: must look like redis://HOST:PORT")
    return parts.hostname, port or default_port
