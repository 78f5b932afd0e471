"""What the supervisor tells workers about the replicas.

Invariants:
- Values are frozen; when the world changes, a new value is made.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class ReplicaState(msgspec.Struct, frozen=True):
    """What the control plane last knew of one replica.

    slot: its row in the shared load board, stable for the replica's life.
    url: scheme, host and port, no path. started_s: process start (0 if unknown); a new value
    means an empty cache, and so does a new incarnation. cache_blocks: KV blocks (None if unknown).
    kv_usage: 0..1. adapters: those of the models that are adapters (LoRA), with the model that
    each is one of.
    """

    id: str
    slot: int
    url: str
    up: bool = False
    draining: bool = False
    models: tuple[str, ...] = ()
    max_model_tokens: int | None = None
    block_tokens: int | None = None
    cache_blocks: int | None = None
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    started_s: float = 0.0
    incarnation: int = 0
    adapters: dict[str, str] = {}


class FleetState(msgspec.Struct, frozen=True):
    """Snapshot of all replicas. Sent whole: small, and it cannot be half applied."""

    version: int
    replicas: tuple[ReplicaState, ...]


def adapter_bases(replicas: Iterable[ReplicaState]) -> dict[str, str]:
    """Return the base model of each LoRA adapter. An adapter that two replicas put on different
    models is left out: which tokenizer it needs is unknown."""
    found: dict[str, str] = {}
    doubtful: set[str] = set()
    for replica in replicas:
        for adapter, model in replica.adapters.items():
            if found.setdefault(adapter, model) != model:
                doubtful.add(adapter)
    return {adapter: model for adapter, model in found.items() if adapter not in doubtful}


class Load(msgspec.Struct, frozen=True, gc=False):
    """In-flight work of one replica, summed over all workers.

    queued_tokens: uncached prompt tokens of requests without a first byte yet.
    """

    requests: int
    queued_tokens: int


class Standing(StrEnum):
    """How far what is known of a cache by its events may be believed (metric label)."""

    NONE = "none"  # no events, or none for too long: the gateway's own index decides
    PARTIAL = "partial"  # what was stored before the first event seen is not known
    COMPLETE = "complete"


class CacheChange(msgspec.Struct, frozen=True, gc=False):
    """What changed in the cache of one replica's data-parallel rank, by its events.

    ranks: how many the replica has. block_tokens: tokens per block of the hashes. cleared: nothing
    that was known before is left. forget: nor is anything that was only assumed. stored, removed:
    packed uint64, in no order; host_…: in memory other than the GPU's.
    """

    slot: int
    rank: int
    ranks: int
    standing: Standing
    block_tokens: int
    cleared: bool = False
    forget: bool = False
    stored: bytes = b""
    removed: bytes = b""
    host_stored: bytes = b""
    host_removed: bytes = b""
