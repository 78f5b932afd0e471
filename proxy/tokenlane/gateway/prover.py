"""When replicas are asked to prove that they make the same ids, and what follows from it.

Invariants:
- Each replica is proven by one of the workers, for all of them: at its start and after every sign
  of another process whatever `tokenlane.tokens.proof_corpus` draws, its whole vocabulary included;
  later one question now and then. What each worker asks besides is a sample of its requests; the
  one whose request showed a difference proves the replica from then on.
- A difference counts at once. A replica that cannot say proves nothing, and is asked again later.
- A refuted kind is asked about again soon, with what refuted it first; where only answers showed
  the difference, so that a proof finds nothing, later each time.
- Questions never delay requests: a replica gets one at a time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from random import Random
from typing import Any

from tokenlane.config.settings import Settings
from tokenlane.fleet_state import ALL_KINDS, FleetState, IdKind, Proof, ProofNews, ReplicaState
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.id_questions import CannotSayError, IdQuestions
from tokenlane.gateway.id_trust import Claim, Trust
from tokenlane.gateway.recorder import Recorder
from tokenlane.protocols.bodies import Prompted
from tokenlane.tokens.keys import prompt_size_bytes
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# Between questions to a replica that has proven all it can.
CALM_S = 60.0
_DEADLINE_S = 10.0
_REST_LIMIT_S = 3600.0
_EVIDENCE_LIMIT_BYTES = 64 * 1024
# The kinds that questions prove, each with the kinds proven along with it.
PROVABLE = {
    IdKind.COMPLETION: IdKind.COMPLETION,
    IdKind.CHAT: IdKind.CHAT | IdKind.DIALECT,
    IdKind.TOOLS: IdKind.TOOLS | IdKind.UNUSED_TOOLS,
    IdKind.OPTIONS: IdKind.OPTIONS,
}
# Where these differ, the others would too.
_BASES = (IdKind.COMPLETION, IdKind.CHAT)


def rest_s(proof: Proof, interval_s: float) -> float:
    """Return how long a refuted kind waits for its next proof."""
    times = min(max(proof.unseen - 1, 0), 20)
    return min(interval_s * 2.0**times, _REST_LIMIT_S)


class _Work:
    """The proofs of one process of a replica and one model. evidence: by kind, a request whose ids
    differed. idle: kinds that nothing can be asked about. Times are monotonic: again_s: of the next
    proof of what is refuted, calm_s: of the next question where nothing is to be proven, rested_s:
    before which nothing is asked. pause_s: grows while the replica cannot say."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.losses = -1
        self.evidence: dict[IdKind, Prompted] = {}
        self.idle = 0
        self.again_s = self.calm_s = self.rested_s = self.pause_s = 0.0

    def missing(self, proof: Proof, now_s: float) -> int:
        """Return the kinds to be proven now."""
        resting = proof.refuted if now_s < self.again_s else 0
        kinds = ALL_KINDS & ~proof.proven & ~resting & ~self.idle
        for base in _BASES:
            if proof.refuted & base:
                kinds &= 2 * base - 1
        return kinds

    def due_s(self, proof: Proof) -> float:
        """Return when to go on."""
        if self.missing(proof, -1.0):
            return self.rested_s
        due_s = min(self.calm_s, self.again_s) if proof.refuted else self.calm_s
        return max(due_s, self.rested_s)


class Prover:
    """A worker's part of the proofs. on_proof: told what was found out, for the other workers.
    share: its number, and how many workers there are. trust: what follows from all proofs."""

    def __init__(
        self,
        fleet: Fleet,
        tokenizer: Callable[[str], Tokenizer | None],
        settings: Settings,
        recorder: Recorder,
        on_proof: Callable[[ProofNews], object] | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._fleet = fleet
        self.trust = Trust(tokenizer, self._heard, recorder.mismatch, share[0])
        self._tokenizer = tokenizer
        self._recorder = recorder
        self.on_proof = on_proof
        self._share = share
        self._draw = Random()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._work: dict[tuple[int, str], _Work] = {}
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._slots: frozenset[int] = frozenset()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Replace the settings for questions from now on."""
        self._interval_s = settings.control.probe_interval_s

    def update(self, state: FleetState) -> None:
        """Adopt a new snapshot, known to the fleet and the trust already."""
        slots = self._slots = frozenset([replica.slot for replica in state.replicas])
        number, count = self._share
        mine = {
            one.slot
            for one in state.replicas
            if one.slot % count == number or number in [p.prover for p in one.proofs.values()]
        }
        for slot in self._tasks.keys() - mine:
            self._tasks.pop(slot).cancel()
        self._work = {key: work for key, work in self._work.items() if key[0] in slots}
        for slot in mine:
            if slot not in self._tasks:
                self._changed[slot] = asyncio.Event()
                self._tasks[slot] = asyncio.get_running_loop().create_task(self._keep(slot))
            self._changed[slot].set()

    def _heard(self, news: ProofNews) -> None:
        if news.slot in self._changed:
            self._changed[news.slot].set()
        if self.on_proof is not None:
            self.on_proof(news)

    def close(self) -> None:
        """Ask no further."""
        for task in (*self._tasks.values(), *self._checks.values()):
            task.cancel()

    # A sample of the requests

    def check(self, slot: int, claim: Claim, request: Prompted, ids: bytes | None) -> bool:
        """Ask a replica for the ids of a request that it answered; False where it is being asked
        for others. ids: ours, made once more where they were not kept."""
        if slot not in self._slots or slot in self._checks:
            return False
        task = asyncio.get_running_loop().create_task(self._check(slot, claim, request, ids))
        self._checks[slot] = task
        task.add_done_callback(lambda _: self._checks.pop(slot, None))
        return True

    async def _check(self, slot: int, claim: Claim, request: Prompted, ids: bytes | None) -> None:
        tokenizer = self._tokenizer(claim.model)
        if slot not in self._fleet or tokenizer is None or tokenizer.made_elsewhere(request):
            return
        replica = self._fleet[slot]
        same = None
        with contextlib.suppress(CannotSayError):
            same = await self._questions(slot, claim.model, tokenizer).same(request, ids)
        self._counted(claim.model, replica.state.id, same)
        work = self._of(replica.state, tokenizer.model)
        work.calm_s = time.monotonic() + CALM_S  # this was its one question
        if same is False:
            if prompt_size_bytes(request) <= _EVIDENCE_LIMIT_BYTES:
                work.evidence[IdKind(claim.kinds).blamed()] = request
            self.trust.differs(slot, claim)

    def _counted(self, model: str, replica: str, same: bool | None) -> None:
        said = "unknown" if same is None else "same" if same else "other"
        self._recorder.checked(model, replica, said)

    def _questions(self, slot: int, model: str, tokenizer: Tokenizer) -> IdQuestions:
        return IdQuestions(self._fleet[slot], model, tokenizer, _DEADLINE_S)

    # Proofs

    async def _keep(self, slot: int) -> None:
        changed = self._changed[slot]
        while True:
            changed.clear()
            try:
                wait_s = await self._round(slot)
            except Exception:
                log.exception("a proof failed unexpectedly")
                wait_s = CALM_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await changed.wait()

    async def _round(self, slot: int) -> float | None:
        """Do what is due; return the seconds until the next is, None where nothing will be."""
        state = self.trust.replica(slot)
        if state is None or not state.up or slot not in self._fleet:
            return None
        due_s = []
        for model in state.models:
            tokenizer = self._tokenizer(model)
            if model in state.adapters and (tokenizer is None or tokenizer.model != model):
                continue  # the base model of an adapter
            prover = self.trust.proof(slot, model).prover
            if self._share[0] != (prover if prover >= 0 else slot % self._share[1]):
                continue
            work = self._of(state, model)
            await self._go_on(state, model, tokenizer, work)
            due_s.append(work.due_s(self.trust.proof(slot, model)))
        return max(min(due_s) - time.monotonic(), 0.0) if due_s else None

    def _of(self, state: ReplicaState, model: str) -> _Work:
        """Return the proofs of a replica's process, none where it is another than before."""
        work = self._work.get((state.slot, model))
        if work is None or work.process != state.process:
            work = self._work[state.slot, model] = _Work(state.process)
        return work

    async def _go_on(
        self, state: ReplicaState, model: str, tokenizer: Tokenizer | None, work: _Work
    ) -> None:
        proof, now_s = self.trust.proof(state.slot, model), time.monotonic()
        if proof.losses != work.losses:
            work.losses = proof.losses
            work.again_s = now_s + rest_s(proof, self._interval_s)
        if tokenizer is None:
            work.idle = ALL_KINDS
        if now_s < work.due_s(proof):
            return
        # No question covers these kinds, so what their answers showed may no longer hold.
        forgiven = proof.refuted & work.idle if now_s >= work.again_s else 0
        if forgiven:
            self._tell(state, model, forgiven=forgiven)
        calm, work.calm_s = now_s >= work.calm_s, now_s + CALM_S
        if tokenizer is None:
            return
        questions = self._questions(state.slot, model, tokenizer)
        missing = work.missing(proof, now_s)
        try:
            if missing:
                await self._prove(state, model, questions, work, missing)
            elif calm:
                await self._again(state, model, questions, work)
            work.pause_s = 0.0
        except CannotSayError as error:
            work.pause_s = min(max(2 * work.pause_s, self._interval_s), CALM_S)
            work.rested_s = time.monotonic() + work.pause_s
            if proof.why != str(error):
                log.info("replica %s cannot prove its ids of %s: %s", state.id, model, error)
                self._tell(state, model, why=str(error))

    async def _prove(
        self, state: ReplicaState, model: str, questions: IdQuestions, work: _Work, missing: int
    ) -> None:
        """Prove what is missing, kind by kind, as far as nothing differs. Raise CannotSayError."""
        losses = self.trust.proof(state.slot, model).losses
        for kind, along in PROVABLE.items():
            if not missing & along:
                continue
            evidence = work.evidence.get(kind)
            if evidence is not None and await questions.same(evidence) is False:
                self._counted(model, state.id, False)
                found: Prompted | int = evidence
            else:
                work.evidence.pop(kind, None)
                found = await questions.agrees(kind, self._draw)
            if isinstance(found, int):
                if not found:
                    work.idle |= along
                elif not self._tell(state, model, losses=losses, proven=along):
                    return  # lost meanwhile, so start over
                continue
            work.evidence[kind] = found
            self._refute(state, model, kind, kind, work)
            losses = work.losses
            if kind in _BASES:
                return

    async def _again(
        self, state: ReplicaState, model: str, questions: IdQuestions, work: _Work
    ) -> None:
        """Put one more question to a replica that has proven all it can. Raise CannotSayError."""
        kinds = [kind for kind in PROVABLE if not work.idle & kind]
        if not kinds:
            return
        kind = self._draw.choice(kinds)
        request = await questions.drawn(kind, self._draw)
        same = await questions.same(request)
        self._counted(model, state.id, same)
        if same is False:
            work.evidence[kind] = request
            self._refute(state, model, kind, ALL_KINDS, work)

    def _refute(
        self, state: ReplicaState, model: str, kind: IdKind, lost: IdKind, work: _Work
    ) -> None:
        if not self.trust.proof(state.slot, model).refuted & kind:
            why = "those of a question"
            self._tell(state, model, lost=lost, refuted=kind, why=why)
        work.losses = self.trust.proof(state.slot, model).losses
        work.again_s = time.monotonic() + self._interval_s

    def _tell(self, state: ReplicaState, model: str, **news: Any) -> bool:
        news.setdefault("losses", self.trust.proof(state.slot, model).losses)
        return self.trust.tell(ProofNews(state.slot, state.process, model, **news))
