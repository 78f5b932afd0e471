"""A worker's replicas: the control plane's snapshot, with a connection pool for each.

Invariants:
- A snapshot is applied whole. A replica keeps its pool as long as its slot, id and URL stay.
- Model names come from the replicas; what no replica serves is refused before any work is done.
"""

import ssl
from collections.abc import Collection, Iterable
from typing import Final

from tokenlane.config.secret import Secret
from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import RequestError
from tokenlane.fleet_state import FleetState, ReplicaState, adapter_bases
from tokenlane.gateway.refusals import unknown_model
from tokenlane.http.pool import ReplicaPool
from tokenlane.protocols.context_window import NO_LIMIT
from tokenlane.runtime.clock import monotonic

# Longer model names are not looked up.
_NAME_LIMIT_CHARS: Final = 1024


class Replica:
    """One replica as requests see it. label: its id as a header value."""

    __slots__ = ("label", "pool", "state")

    def __init__(
        self,
        state: ReplicaState,
        settings: UpstreamSettings,
        key: Secret | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.state = state
        self.label = state.id.encode("ascii", "replace")
        self.pool = ReplicaPool(state.url, settings, key, tls)

    def renew(
        self, settings: UpstreamSettings, key: Secret | None, tls: ssl.SSLContext | None
    ) -> None:
        """Use new connections from now on; those in use end with their requests."""
        self.pool.close()
        self.pool = ReplicaPool(self.state.url, settings, key, tls)


class Fleet:
    """The replicas by slot. key: shown to all of them. tls: for those on https.

    models: everything some replica serves, in the fleet's order. ready: of these, what one that is
    up and not draining serves.
    context_tokens: by model, the longest prompt that some replica takes, where all have said it.
    bases: of those that are adapters (LoRA), the model that each is one of.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        key: Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._settings = settings
        self._key = key
        self._replicas: dict[int, Replica] = {}
        self._complete = False
        self.models: tuple[str, ...] = ()
        self.ready: frozenset[str] = frozenset()
        self.context_tokens: dict[str, int] = {}
        self.bases: dict[str, str] = {}
        self.state = FleetState(version=0, replicas=())

    def configure(
        self, settings: UpstreamSettings, key: Secret | None, tls: ssl.SSLContext | None
    ) -> None:
        """Replace key and TLS context from the next attempt on. The same object means no change."""
        renewed = key is not self._key or tls is not self._tls
        self._settings, self._key, self._tls = settings, key, tls
        for replica in self._replicas.values():
            if renewed:
                replica.renew(settings, key, tls)
            else:
                replica.pool.settings = settings

    def update(self, state: FleetState) -> None:
        """Adopt a new snapshot."""
        replicas: dict[int, Replica] = {}
        for now in state.replicas:
            replica = self._replicas.pop(now.slot, None)
            if replica is not None and (replica.state.id, replica.state.url) != (now.id, now.url):
                replica.pool.close()
                replica = None
            if replica is None:
                replica = Replica(now, self._settings, self._key, self._tls)
            replica.state = now
            replicas[now.slot] = replica
        for gone in self._replicas.values():
            gone.pool.close()
        self._replicas = replicas
        self.state = state
        context: dict[str, int] = {}
        for now in state.replicas:
            limit = now.max_model_tokens or NO_LIMIT
            for name in now.models:
                context[name] = max(context.get(name, 0), limit)
        self.models = tuple(context)
        self.context_tokens = {name: limit for name, limit in context.items() if limit < NO_LIMIT}
        self.ready = frozenset(
            name for now in state.replicas if now.up and not now.draining for name in now.models
        )
        self.bases = adapter_bases(state.replicas)
        self._complete = bool(state.replicas) and all(now.models for now in state.replicas)

    def __contains__(self, slot: int) -> bool:
        return slot in self._replicas

    def __getitem__(self, slot: int) -> Replica:
        return self._replicas[slot]

    def can_serve(self) -> bool:
        """Return whether a replica is up and not draining."""
        return any(now.up and not now.draining for now in self.state.replicas)

    def resolve(self, model: str | None, names: Iterable[str] = ()) -> str | None:
        """Return the model that a request names; None while no replica has listed its models yet.
        names: further names that are accepted.

        Raise RequestError 404 for a model that nobody serves, 400 where one must be named.
        """
        if model is None:
            whole = [name for name in self.models if name not in self.bases]
            if len(whole) > 1:
                served = ", ".join(self._served(names))
                raise RequestError(
                    400,
                    f"The field `model` is required here. Served: {served}.",
                    code="missing_field",
                    param="model",
                )
            return whole[0] if whole else None
        if model not in self.models:
            # A replica that has not answered a probe yet may serve it.
            if not self._complete and len(model) <= _NAME_LIMIT_CHARS:
                return model
            raise unknown_model(model, self._served(names))
        return model

    def _served(self, names: Iterable[str]) -> Collection[str]:
        return dict.fromkeys((*self.models, *names))

    def max_model_tokens(self, model: str | None) -> int | None:
        """Return the smallest context length of the replicas that serve a model."""
        known = [
            now.max_model_tokens
            for now in self.state.replicas
            if now.max_model_tokens is not None and (model is None or model in now.models)
        ]
        return min(known, default=None)

    @property
    def open_connections(self) -> int:
        """Connections to replicas, idle ones included."""
        return sum(replica.pool.open_count for replica in self._replicas.values())

    @property
    def idle_connections(self) -> int:
        """Connections that carry no request now."""
        return sum(replica.pool.idle_count for replica in self._replicas.values())

    def sweep(self) -> None:
        """Close connections that idled too long."""
        now_s = monotonic()
        for replica in self._replicas.values():
            replica.pool.sweep(now_s)

    def close(self) -> None:
        """Close all idle connections."""
        for replica in self._replicas.values():
            replica.pool.close()
