"""Where a replica publishes its KV events: as it says (`/kv_event_sources`), or as configured.

Invariants:
- A replica cannot send the gateway anywhere else: of what it says the port counts, at its own host.
- vLLM binds an endpoint with a wildcard, says an address where the system chose the port, and
  connects to any other. Who connects by name cannot be subscribed to unless the settings say where
  to listen (`bind`).
"""

import logging
import re
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tokenlane.config.settings import RANK_LIMIT, KvSource
from tokenlane.control.probes import ProbeFailed, body_of
from tokenlane.errors import UNREADABLE, ConfigError
from tokenlane.runtime.ports import url_of

_LAST_PORT = 65535
ANSWER_LIMIT_BYTES = 256 * 1024

log = logging.getLogger("kv")

_TCP = re.compile(r"tcp://(.*):(\d{1,5})$")


class EventEndpoint(msgspec.Struct, frozen=True):
    """One rank's publisher. live, replay: addresses to connect to; live is bound if `bind`."""

    rank: int
    live: str
    replay: str | None = None
    topic: str = ""
    bind: bool = False


def configured(source: KvSource) -> tuple[EventEndpoint, ...]:
    """The endpoints that the settings name: rank r is at the port plus r. ConfigError if one is
    no address."""
    for name in ("endpoint", "replay_endpoint"):
        given = getattr(source, name)
        if name == "replay_endpoint" and not given:
            continue
        match = _TCP.match(given)
        if match is None or not 0 < int(match[2]) <= _LAST_PORT + 1 - source.data_parallel_ranks:
            raise ConfigError(f"{name} {given!r} must look like tcp://HOST:PORT")
    return tuple(
        EventEndpoint(
            rank,
            _shifted(source.endpoint, rank),
            _shifted(source.replay_endpoint, rank) if source.replay_endpoint else None,
            source.topic,
            source.bind,
        )
        for rank in range(source.data_parallel_ranks)
    )


def described(answer: Any, host: str) -> tuple[EventEndpoint, ...]:
    """The endpoints of a `/kv_event_sources` answer by the replica at `host`; () for none."""
    if not isinstance(answer, dict):
        return ()
    found: list[EventEndpoint] = []
    for name, fields in sorted(answer.items(), key=lambda item: (len(item[0]), item[0])):
        if not (name.isascii() and name.isdigit() and isinstance(fields, dict)):
            continue
        if int(name) >= RANK_LIMIT or fields.get("publisher", "zmq") != "zmq":
            continue
        live = _reachable(fields.get("endpoint"), host)
        if live is None:
            log.info("%s publishes KV events where nobody can subscribe; set kv_events", host)
            continue
        kept = fields.get("buffer_steps") != 0
        replay = _reachable(fields.get("replay_endpoint"), host) if kept else None
        topic = fields.get("topic")
        found.append(
            EventEndpoint(int(name), live, replay, topic if isinstance(topic, str) else "")
        )
    if len({one.live for one in found}) < len(found):
        # The same address for every rank: that of rank 0, and rank r is at the port plus r.
        found = [
            msgspec.structs.replace(
                one,
                live=_shifted(one.live, one.rank),
                replay=_shifted(one.replay, one.rank) if one.replay else None,
            )
            for one in found
        ]
    return tuple(found)


async def discover(session: aiohttp.ClientSession, url: str) -> tuple[EventEndpoint, ...] | None:
    """What the replica says; None if it could not be asked."""
    try:
        told = await body_of(session, f"{url}/kv_event_sources", ANSWER_LIMIT_BYTES)
        return described(msgspec.json.decode(told), urlsplit(url).hostname or "")
    except ProbeFailed as failed:
        return () if failed.status in (404, 405) else None
    except UNREADABLE:
        return None


def _reachable(endpoint: Any, host: str) -> str | None:
    """A publisher's bound address as one to connect to."""
    match = _TCP.match(endpoint) if isinstance(endpoint, str) else None
    if match is None or not 0 < int(match[2]) < 65536:
        return None
    if match[1] != "*":
        try:
            ip_address(match[1].strip("[]"))
        except ValueError:
            return None
    return url_of(host, int(match[2]), "tcp")


def _shifted(endpoint: str, by: int) -> str:
    match = _TCP.match(endpoint)
    return f"tcp://{match[1]}:{int(match[2]) + by}" if match and by else endpoint
