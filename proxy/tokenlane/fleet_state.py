"""What the supervisor tells workers about the replicas.

Invariants:
- Values are frozen; when the world changes, a new value is made.
"""

from collections.abc import Iterable
from enum import IntFlag, StrEnum

import msgspec


class IdKind(IntFlag):
    """What a request's ids rest on. Each kind rests on those before it that its request needs; a
    difference is blamed on the last one, so that what one client asks for costs the others least.
    """

    COMPLETION = 1  # the vocabulary, added tokens and merges
    CHAT = 2  # the chat template
    TOOLS = 4  # how it renders tools
    OPTIONS = 8  # how it takes template variables, documents, efforts, a message to go on from
    DIALECT = 16  # how other dialects become chats
    UNUSED_TOOLS = 32  # whether tools that may not be called (`tool_choice: none`) are rendered

    @property
    def label(self) -> str:
        """Its name for people and metrics."""
        return (self.name or "").lower().replace("_", "-")

    def blamed(self) -> "IdKind":
        """Return the last of these kinds."""
        return IdKind(1 << (self.value.bit_length() - 1)) if self else self


ALL_KINDS = IdKind(63)


class Proof(msgspec.Struct, frozen=True):
    """What a replica's process has shown of the ids of one model.

    proven, refuted: IdKind bits; neither: not known yet. losses: times that anything proven was
    lost, so that a proof that began before is not taken for one that came after. unseen: how many
    of these were seen in answers alone, where the proof before had found nothing. why: of the last
    loss, or why nothing can be proven. prover: the worker that has a request whose ids differed;
    -1 for none.
    """

    proven: int = 0
    refuted: int = 0
    losses: int = 0
    unseen: int = 0
    why: str = ""
    prover: int = -1

    def state(self, kind: IdKind) -> str:
        """Return proven, unproven or refuted."""
        if self.refuted & kind:
            return "refuted"
        return "proven" if self.proven & kind else "unproven"

    def told(self, news: "ProofNews") -> "Proof":
        """Return the proof after the news; the same proof where they are old."""
        if news.losses != self.losses:
            return self
        if news.lost:
            return Proof(
                self.proven & ~news.lost,
                self.refuted | news.refuted,
                self.losses + 1,
                self.unseen + news.unseen,
                news.why,
                news.prover if news.prover >= 0 else self.prover,
            )
        proven = self.proven | news.proven
        refuted = self.refuted & ~(news.proven | news.forgiven)
        return Proof(proven, refuted, self.losses, self.unseen, news.why, self.prover)


NOTHING_PROVEN = Proof()


class ProofNews(msgspec.Struct, frozen=True):
    """What a worker found out about the ids of a replica's process.

    model: empty for all that the replica serves. losses: of the proof that it was held against.
    IdKind bits: proven, lost; refuted: of those lost, what was seen to differ (the rest has to be
    proven again); forgiven: not refuted any more. unseen: 1 where the difference was in an answer.
    prover: the worker that proves what was lost from now on; -1 for the same as before.
    """

    slot: int
    process: int
    model: str
    losses: int
    proven: int = 0
    lost: int = 0
    refuted: int = 0
    forgiven: int = 0
    unseen: int = 0
    why: str = ""
    prover: int = -1


class ReplicaState(msgspec.Struct, frozen=True):
    """What the control plane last learned of one replica.

    slot: its row in the shared load board, stable for the replica's life.
    url: scheme, host and port, no path. started_s: process start (0 if unknown); a new value
    means an empty cache, and so does a new incarnation. cache_blocks: KV blocks (None if unknown).
    kv_usage: 0..1. adapters: those of the models that are adapters (LoRA), with the model that
    each is one of. process: a new number with every sign of another process behind the URL. proofs:
    by model, of this process.
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
    process: int = 0
    proofs: dict[str, Proof] = {}

    def with_news(self, news: ProofNews) -> "ReplicaState":
        """Return the replica after the news, itself where they are old or of another process."""
        if news.process != self.process:
            return self
        proofs = dict(self.proofs)
        for model in (news.model,) if news.model else {*self.models, *self.proofs}:
            proof = proofs.get(model, NOTHING_PROVEN)
            told = news if news.model else msgspec.structs.replace(news, losses=proof.losses)
            proofs[model] = proof.told(told)
        return self if proofs == self.proofs else msgspec.structs.replace(self, proofs=proofs)


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
    """How complete the picture of a cache from its events is (metric label)."""

    NONE = "none"  # no events, or none for too long: the gateway's own index decides
    PARTIAL = "partial"  # blocks stored before the first event are not known
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
