"""Which replicas have proven that they make the same ids, by model and kind of request. Pure.

Invariants:
- What is not proven is not used: no ids are forwarded, no prompt is refused for its length, and
  `/tokenize` is the replica's to answer. What is refuted, and what a doubted model (one whose files
  do not say for sure how vLLM reads them) has not proven, is not compared with the replica's own
  account of prompts and caches either.
- A loss counts here at once and for all workers soon; a proof that began before it does not count.
- A request looks its claim up once; the claim is kept up to date while the request runs.
"""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from tokenlane.fleet_state import (
    ALL_KINDS,
    NOTHING_PROVEN,
    FleetState,
    IdKind,
    Proof,
    ProofNews,
    ReplicaState,
)
from tokenlane.routing.candidates import serves
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_NO_SLOTS: Final[frozenset[int]] = frozenset()


class Claim:
    """What is known of the ids of one model's requests of some kinds.

    kinds: IdKind bits. proven: slots of the replicas that make the same ids. refuted: of those that
    were seen to make others. silent: of those whose own account is not compared with ours.
    everywhere: every replica that could answer has proven them. dated: the model's template prints
    the time.
    """

    __slots__ = ("dated", "everywhere", "kinds", "model", "proven", "refuted", "silent")

    def __init__(self, model: str, kinds: int) -> None:
        self.model = model
        self.kinds = kinds
        self.proven = self.refuted = self.silent = _NO_SLOTS
        self.everywhere = kinds == 0
        self.dated = False


class Trust:
    """A worker's claims. claims: by model and kinds, those that were asked for. tokenizer: of a
    model, if there is one. on_news: told what was found out here, for the other workers.
    on_mismatch: told (model, replica id) of each difference. worker: its number."""

    def __init__(
        self,
        tokenizer: Callable[[str], Tokenizer | None],
        on_news: Callable[[ProofNews], object],
        on_mismatch: Callable[[str, str], object],
        worker: int = 0,
    ) -> None:
        self._worker = worker
        self._tokenizer = tokenizer
        self._on_news = on_news
        self._on_mismatch = on_mismatch
        self._replicas: dict[int, ReplicaState] = {}
        self._models: frozenset[str] = frozenset()
        self.claims: dict[tuple[str, int], Claim] = {}

    def claim(self, model: str, kinds: int) -> Claim:
        """Return the claim for a model's requests of these kinds (IdKind bits)."""
        found = self.claims.get((model, kinds))
        if found is None:
            found = Claim(model, kinds)
            if model in self._models:  # unknown names are not stored: there is no end of them
                self._settle(found)
                self.claims[model, kinds] = found
        return found

    def replica(self, slot: int) -> ReplicaState | None:
        """Return a replica with what it has proven, as known here."""
        return self._replicas.get(slot)

    def proof(self, slot: int, model: str) -> Proof:
        """Return what a replica has shown of a model's ids."""
        replica = self._replicas.get(slot)
        if replica is None:
            return NOTHING_PROVEN
        return replica.proofs.get(self._name(replica, model), NOTHING_PROVEN)

    def update(self, state: FleetState) -> None:
        """Adopt a new snapshot. A loss seen here that it does not know of yet stays."""
        before = self._replicas
        self._replicas = {now.slot: _merged(before.get(now.slot), now) for now in state.replicas}
        if before.keys() == self._replicas.keys() and all(
            _decides_alike(before[slot], now) for slot, now in self._replicas.items()
        ):
            return  # only loads have changed
        self._models = frozenset([name for now in state.replicas for name in now.models])
        for key in [key for key in self.claims if key[0] not in self._models]:
            gone = self.claims.pop(key)  # requests in hand go by it on
            self._settle(gone)
            gone.everywhere = False
        self._settle_all()

    def tell(self, news: ProofNews) -> bool:
        """Apply news found by this worker. Return False where they are old."""
        before = self._replicas.get(news.slot)
        after = before and before.with_news(news)
        if before is None or after is None or after is before:
            return False
        self._replicas[news.slot] = after
        self._settle_all()
        if news.refuted:
            self._on_mismatch(news.model, after.id)
            kinds = ", ".join(kind.label for kind in IdKind(news.refuted))
            log.warning(
                "replica %s makes other ids of %s (%s) than the gateway: %s; it gets no ids until"
                " a proof succeeds",
                after.id, news.model, kinds, news.why,
            )  # fmt: skip
        self._on_news(news)
        return True

    def mismatch(self, slot: int, claim: Claim) -> None:
        """Take back what an answer refutes that counts other prompt tokens than the gateway. The
        request's options may explain the difference, so only the last of its kinds is lost."""
        blamed = IdKind(claim.kinds).blamed()
        self._lose(slot, claim.model, blamed, blamed, "its answer counts others", unseen=1)

    def differs(self, slot: int, claim: Claim) -> None:
        """Take back all proofs of a replica that makes other ids of a request than the gateway.
        This worker, which has the request, proves the replica from now on."""
        blamed, why = IdKind(claim.kinds).blamed(), "those of a request, asked for afterwards"
        self._lose(slot, claim.model, ALL_KINDS, blamed, why, prover=self._worker)

    def _lose(
        self, slot: int, model: str, lost: IdKind, refuted: IdKind, why: str, **more: int
    ) -> None:
        replica = self._replicas.get(slot)
        if replica is None:
            return
        name = self._name(replica, model)
        proof = replica.proofs.get(name, NOTHING_PROVEN)
        if proof.proven & lost or refuted & ~proof.refuted:
            self.tell(
                ProofNews(
                    slot, replica.process, name, proof.losses,
                    lost=lost, refuted=refuted & ~proof.refuted, why=why, **more,
                )
            )  # fmt: skip

    def refused(self, slot: int) -> None:
        """Note that the port refused a connection: another process may listen there next."""
        replica = self._replicas.get(slot)
        if replica is not None and any(proof.proven for proof in replica.proofs.values()):
            why = "it refused a connection"
            self.tell(ProofNews(slot, replica.process, "", 0, lost=ALL_KINDS, why=why))

    def _name(self, replica: ReplicaState, model: str) -> str:
        """Return the model whose tokenizer reads this one's requests."""
        tokenizer = self._tokenizer(model)
        return replica.adapters.get(model, model) if tokenizer is None else tokenizer.model

    def _settle_all(self) -> None:
        for claim in self.claims.values():
            self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        kinds, model = claim.kinds, claim.model
        tokenizer = self._tokenizer(model)
        doubted = tokenizer is not None and bool(tokenizer.doubts)
        proven, refuted, silent, everywhere = set(), set(), set(), True
        for slot, replica in self._replicas.items():
            if not serves(replica, model):
                continue
            proof = replica.proofs.get(self._name(replica, model), NOTHING_PROVEN)
            if proof.refuted & kinds:
                refuted.add(slot)
                silent.add(slot)
            elif proof.proven & kinds == kinds:
                proven.add(slot)
            elif doubted:
                silent.add(slot)
            everywhere = everywhere and (slot in proven or not replica.up)
        claim.proven, claim.refuted = frozenset(proven), frozenset(refuted)
        claim.silent = frozenset(silent) if silent else _NO_SLOTS
        claim.everywhere = everywhere
        claim.dated = tokenizer is not None and tokenizer.volatile


def _decides_alike(one: ReplicaState, other: ReplicaState) -> bool:
    """Return whether all claims are the same with either."""
    return (
        one.proofs == other.proofs
        and one.up == other.up
        and one.models == other.models
        and one.adapters == other.adapters
    )


def _merged(mine: ReplicaState | None, now: ReplicaState) -> ReplicaState:
    if mine is None or (mine.id, mine.process) != (now.id, now.process):
        return now
    ahead = {
        model: proof
        for model, proof in mine.proofs.items()
        if proof.losses > now.proofs.get(model, NOTHING_PROVEN).losses
    }
    return msgspec.structs.replace(now, proofs={**now.proofs, **ahead}) if ahead else now
