"""The words the floors share: frozen values without behaviour.

Invariants:
- Values are immutable; a change of the world is a new value.
- Token ids travel as packed little-endian uint32, block hashes as packed native uint64:
  a list of 100,000 ints holds the GIL for more than a millisecond.
"""

from enum import StrEnum

import msgspec


class Rung(StrEnum):
    """Where a request's ids came from, cheapest for the loop first (metric label)."""

    TOKEN_INPUT = "token-input"
    CACHE = "cache"
    SHORT = "short"
    THREADS = "threads"
    PROCESSES = "processes"
    LOCAL = "local"
    REPLICA = "replica"
    BAIL = "bail"


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt as ids.

    sequences: one packed uint32 buffer per prompt of the request (chat has one).
    blocks: packed uint64, chained hashes of the first sequence's full blocks.
    block_tokens: tokens per block in `blocks`. tokens: in all sequences together.
    """

    sequences: tuple[bytes, ...]
    blocks: bytes
    block_tokens: int
    tokens: int

    @property
    def size_bytes(self) -> int:
        """What a cache pays for this entry."""
        return 4 * self.tokens + len(self.blocks) + 128


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


class CandidateSample(msgspec.Struct, frozen=True, array_like=True):
    """A replica as a routing decision saw it. Tokens; cost: in the policy's own measure."""

    slot: int
    cached_tokens: int
    requests: int
    queued_tokens: int
    cost: float


class RoutingSample(msgspec.Struct, frozen=True):
    """One request that was routed, for people to look at.

    at_s: Unix time of its end. candidates: the cheapest first, a few of them. exact: the prompt was
    known by its ids. cached_tokens: predicted, actual_cached_tokens: as the replica reported it.
    ttft_s: only of streams. rung: None where no ids were asked for.
    """

    at_s: float
    model: str
    policy: str
    reason: str
    slot: int
    candidates: tuple[CandidateSample, ...]
    candidate_count: int
    exact: bool
    prompt_tokens: int
    cached_tokens: int
    actual_cached_tokens: int | None
    rung: str | None
    tokenize_s: float
    ttft_s: float | None
    duration_s: float
    status: int
    outcome: str


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
