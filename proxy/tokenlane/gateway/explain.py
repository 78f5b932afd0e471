"""Where a request would go and why, without sending it.

Invariants:
- The steps are those of the life of a request up to its decision, in the same worker and with the
  same state; nothing is leased, remembered or sent.
- The answer holds counts and names, nothing of the prompt.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokenlane.errors import INTERNAL, RequestError, error_body
from tokenlane.fleet_state import ReplicaState
from tokenlane.gateway import body_reader, refusals
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.id_trust import Trust
from tokenlane.gateway.model_names import ModelNames
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.prompt import HASH_BYTES
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import Kind, OtherBody, inspect, is_ids, kinds_of
from tokenlane.protocols.prompt_fields import ABSENT
from tokenlane.routing.candidates import Eligible, serves
from tokenlane.routing.decision import Decision, Reason
from tokenlane.routing.router import Router
from tokenlane.tokens.service import TokenService

log = logging.getLogger(__name__)

MEANINGS: dict[Reason, str] = {
    Reason.ONLY_ONE: "there was no choice",
    Reason.PREFIX: "it holds the longest prefix worth following",
    Reason.COLD: "nobody holds a prefix worth following, and it is the least busy",
    Reason.SPILL: "the replica it belongs to is too busy",
    Reason.HASH: "the hash of the prompt's head chose it",
    Reason.SESSION: "the session's name chose it",
    Reason.LEAST_LOAD: "it has the least to do",
    Reason.TURN: "it was its turn",
    Reason.CHANCE: "it was drawn",
    Reason.NO_TOKENIZER: "the model has no tokenizer here; the prefix is that of the text",
    Reason.BAIL: "the ids could not be had; the prefix is that of the text",
    Reason.NO_TOKENS: "the prompt is not looked at; only its size counts",
}


class _Which(msgspec.Struct):
    messages: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT


def _kind(body: bytes) -> Kind:
    """Chat where there are messages (Anthropic's with a system prompt beside them), else a response
    where there is an input, else completion."""
    try:
        which = msgspec.json.decode(body, type=_Which)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Kind.CHAT  # reading it so will say what is wrong
    if which.messages is not ABSENT:
        return Kind.CHAT if which.system is ABSENT else Kind.MESSAGES
    if which.input is not ABSENT:
        return Kind.RESPONSES
    return Kind.CHAT if which.prompt is ABSENT else Kind.COMPLETION


class Explainer:
    """A worker's explanations. answer: gets (number, status, JSON) of each that was asked for."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        tokens: TokenService,
        query_builder: QueryBuilder,
        answer: Callable[[int, int, bytes], object],
        names: ModelNames,
        trust: Trust,
        *,
        check_context: bool = True,
    ) -> None:
        self._trust = trust
        self.names = names
        self._check_context = check_context
        self._fleet = fleet
        self._router = router
        self._tokens = tokens
        self._query_builder = query_builder
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, number: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Begins an explanation; headers: of the request, lower-case names."""
        task = asyncio.get_running_loop().create_task(self._run(number, headers, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, number: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        try:
            told = await self.explain(headers, body)
        except RequestError as error:
            text = error_body(error.message, error.kind, code=error.code, param=error.param)
            self._answer(number, error.status, text)
        except Exception:
            log.exception("an explanation failed")
            text = error_body(INTERNAL.message, INTERNAL.kind, code=INTERNAL.code)
            self._answer(number, INTERNAL.status, text)
        else:
            self._answer(number, 200, msgspec.json.encode(told))

    async def explain(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> dict[str, Any]:
        """The decision as JSON. Raises RequestError as the request itself would be refused."""
        request = await body_reader.read(lambda whole: inspect(_kind(whole), whole), body)
        assert not isinstance(request, OtherBody)
        model = request.model
        if model is not None and model in self.names:
            key = self.names.key(request, headers, b"")
            model = request.model = self.names.model(model, key, self._fleet.ready)
        model = self._fleet.resolve(model)
        known = await self._tokens.prompt(model or "", request)
        limit_tokens = self._fleet.context_tokens.get(model or "", context_window.NO_LIMIT)
        claim = self._trust.claim(model or "", kinds_of(request))
        if known.prompt is not None and self._check_context and claim.everywhere:
            context_window.check(known.prompt, limit_tokens, text=not is_ids(request))
        query = self._query_builder.query(
            model,
            request,
            known.prompt,
            known.reason,
            self._tokens.block_tokens,
            headers,
            silent=claim.silent,
        )
        now_s = time.monotonic()
        among = self._router.eligible(model, now_s)
        if among.nobody is not None:
            raise refusals.nobody(among.nobody)
        decision = self._router.decide(query, among, now_s)
        return {
            "model": model,
            "policy": decision.policy,
            "reason": decision.reason.value,
            "meaning": MEANINGS[decision.reason],
            "replica": self._fleet[decision.choice.slot].state.id,
            "tokens": query.prompt_tokens,
            "exact": decision.exact,
            "rung": known.rung.value,
            "blocks": len(query.blocks) // HASH_BYTES,
            "block_tokens": query.block_tokens,
            "head_tokens": query.head_tokens or None,
            "session": bool(query.session),
            "panic": among.panic,
            "replicas": [self._row(decision, place) for place in range(len(among.slots))],
            "left_out": self._left_out(model, among),
        }

    def _row(self, decision: Decision, place: int) -> dict[str, Any]:
        row = decision.row(place)
        return {
            "replica": self._fleet[row.slot].state.id,
            "chosen": place == decision.best,
            "matched_tokens": row.cached_tokens,
            "uncached_tokens": row.uncached_tokens,
            "queued_tokens": row.load.queued_tokens,
            "requests": row.load.requests,
            "cost": round(row.cost, 1),
            "prefill_tokens_per_s": round(self._router.progress.rate(row.slot)) or None,
        }

    def _left_out(self, model: str | None, among: Eligible) -> list[dict[str, str]]:
        return [
            {"replica": replica.id, "why": _why(replica, model)}
            for replica in self._fleet.state.replicas
            if replica.slot not in among.slots
        ]


def _why(replica: ReplicaState, model: str | None) -> str:
    if not serves(replica, model):
        return "does not serve the model"
    if not replica.up:
        return "down"
    return "draining" if replica.draining else "refused a connection a moment ago"
