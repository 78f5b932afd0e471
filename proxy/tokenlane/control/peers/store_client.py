"""The store that gateways share, over its client library: one stream, one round trip at a time.

Invariants:
- Every wait has a deadline, and every failure is a StoreError: one that hangs, answers errors or
  talks nonsense is a store that is gone.
- What was in the stream before this client came is never read: it may be a dead gateway's.
- The stream is bounded in entries, and is gone a while after the last gateway.
"""

import asyncio
import contextlib
from typing import Any

from tokenlane.config.keyring import store_password
from tokenlane.config.settings import FleetSettings
from tokenlane.control.peers.store_address import StoreAddress, StoreKind, store_address
from tokenlane.errors import ConfigError

DEADLINE_S = 0.5
# Gateways read twenty times a second: this is more than a thousand of them write in between.
ENTRY_LIMIT = 4096
KEEP_S = 120
# Messages after which the stream is kept for longer: less than KEEP_S of signs of life.
_RENEW_MESSAGES = 256
_FIELD = b"m"
_REASON_LIMIT = 200


class StoreError(Exception):
    """The store did not do what it was asked, and why."""


class StoreClient:
    """A connection to the store: call `exchange` until it raises, then `close` and make another.
    clock_s: the store's (Unix time) when it took the last message that was read."""

    def __init__(self, settings: FleetSettings) -> None:
        self._client, self._closing = _client(settings, store_address(settings.store))
        self._stream = stream_of(settings)
        self._read_to: bytes | None = None
        self.clock_s = 0.0
        self._messages = 0

    async def exchange(self, message: bytes | None) -> list[bytes]:
        """Add a message to the stream, if there is one, and return what came since the last call,
        one's own included. The first call of a client needs one, and returns nothing."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._exchange(message)
        except Exception as error:  # noqa: BLE001 - whatever a library makes of a broken store
            raise _store_error(error) from None

    async def _exchange(self, message: bytes | None) -> list[bytes]:
        pipeline = self._client.pipeline(transaction=False)
        if message is not None:
            pipeline.xadd(self._stream, {_FIELD: message}, maxlen=ENTRY_LIMIT, approximate=True)
            if self._messages % _RENEW_MESSAGES == 0:
                pipeline.expire(self._stream, KEEP_S)
            self._messages += 1
        if self._read_to is not None:
            pipeline.xread({self._stream: self._read_to})
        answers = await pipeline.execute()
        added = answers[0] if message is not None else None
        if self._read_to is None:
            self._read_to = added
            entries = []
        else:
            entries = [entry for _, found in answers[-1] or () for entry in found]
            # Without even the entry just added, the stream was made again and counts from before.
            self._read_to = entries[-1][0] if entries else added or self._read_to
        assert self._read_to is not None, "no number for what was added"
        self.clock_s = _time_s(self._read_to)
        return [fields.get(_FIELD, b"") for _, fields in entries]

    async def look(self) -> tuple[float, list[tuple[float, bytes]]]:
        """Return the store's clock (Unix time) and all that is in the stream, each with the time
        that the store gave it. Adds nothing."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                seconds, microseconds = await self._client.time()
                entries = await self._client.xrange(self._stream)
                return seconds + microseconds / 1e6, [
                    (_time_s(number), fields.get(_FIELD, b"")) for number, fields in entries
                ]
        except Exception as error:  # noqa: BLE001 - whatever a library makes of a broken store
            raise _store_error(error) from None

    async def farewell(self, message: bytes) -> None:
        """Add a last message, if the store takes it."""
        with contextlib.suppress(StoreError):
            await self.exchange(message)

    async def close(self) -> None:
        """Close the connection, whatever state it is in."""
        for one in self._closing:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    await one.aclose()
            except Exception:  # noqa: BLE001, S110 - it is gone either way
                pass


def stream_of(settings: FleetSettings) -> str:
    """Return the key of the fleet's stream."""
    return f"{settings.name}:load"


def check_store_client() -> None:
    """Raise ConfigError where the client library is not installed."""
    try:
        import valkey.asyncio  # noqa: PLC0415, F401 - an extra
    except ImportError:
        raise ConfigError(
            "fleet.store: needs the store's client: pip install 'tokenlane[fleet]'"
        ) from None


def _time_s(number: bytes) -> float:
    """Return when the store took an entry, which its number says."""
    return int(number.split(b"-")[0]) / 1e3


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, TimeoutError):
        return StoreError("no answer in time")
    text = "".join(sign if sign.isprintable() else "?" for sign in str(error))
    return StoreError(f"{type(error).__name__}: {text[:_REASON_LIMIT]}")


def _client(settings: FleetSettings, address: StoreAddress) -> tuple[Any, list[Any]]:
    """Return a client, and what is to be closed after it. Untyped: the library's clients for one
    server and for a cluster have no type in common."""
    from valkey.asyncio import Sentinel, Valkey, ValkeyCluster  # noqa: PLC0415 - an extra
    from valkey.asyncio.cluster import ClusterNode  # noqa: PLC0415 - an extra

    tls: dict[str, Any] = {}
    if address.tls:
        tls = {
            "ssl": True,
            "ssl_check_hostname": True,
            "ssl_ca_certs": settings.tls_ca_file or None,
            "ssl_certfile": settings.tls_cert_file or None,
            "ssl_keyfile": settings.tls_key_file or settings.tls_cert_file or None,
        }
    # Read for each connection: a password that was changed needs no restart.
    password = store_password(settings)
    given: dict[str, Any] = {
        **tls,
        "username": address.user,
        "password": password.reveal().decode() if password is not None else None,
        # The deadline is around all that is asked at once; one for each read is another timer.
        "socket_timeout": None,
    }
    client: Any
    match address.kind:
        case StoreKind.SENTINEL:
            make: Any = Sentinel
            # Sentinels are asked without a user: theirs are not the store's.
            sentinel = make(address.nodes, sentinel_kwargs=tls, **given, db=address.database)
            client = sentinel.master_for(address.service)
            return client, [client, *sentinel.sentinels]
        case StoreKind.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in address.nodes]
            client = ValkeyCluster(startup_nodes=nodes, **given)
        case StoreKind.SERVER:
            host, port = address.nodes[0]
            client = Valkey(host=host, port=port, db=address.database, **given)
    return client, [client]
