"""Where a request would go and why, without sending it.

Invariants:
- The plan and the decision are made as for a request, in the same worker and with the same state;
  nothing is leased, remembered or sent.
- The answer holds counts and names, nothing of the prompt.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tokenlane.channel.messages import Explain
from tokenlane.errors import INTERNAL, UNREADABLE, RequestError, error_body
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.planner import Planner
from tokenlane.prompt import HASH_BYTES
from tokenlane.protocols.bodies import ABSENT
from tokenlane.protocols.routes import Action, route_of
from tokenlane.routing.candidates import LEFT_OUT_WORDS
from tokenlane.routing.decision import Decision, Reason
from tokenlane.routing.router import Router
from tokenlane.telemetry.stalls.stages import DURING, INSPECT

log = logging.getLogger(__name__)

_ROUTED = (Action.GENERATE, Action.FORWARD, Action.KEPT)

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


def _usual_path(body: bytes) -> str:
    """Chat where there are messages (Anthropic's with a system prompt beside them), else a response
    where there is an input, else completion."""
    try:
        which = msgspec.json.decode(body, type=_Which)
    except UNREADABLE:
        return "/v1/chat/completions"  # reading it so will say what is wrong
    if which.messages is not ABSENT:
        return "/v1/chat/completions" if which.system is ABSENT else "/v1/messages"
    if which.input is not ABSENT:
        return "/v1/responses"
    return "/v1/chat/completions" if which.prompt is ABSENT else "/v1/completions"


class Explainer:
    """A worker's explanations. answer: gets (number, status, JSON) of each that was asked for."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        planner: Planner,
        answer: Callable[[int, int, bytes], object],
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._planner = planner
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, question: Explain) -> None:
        """Begin an explanation."""
        task = asyncio.get_running_loop().create_task(self._run(question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, question: Explain) -> None:
        number = question.number
        try:
            told = await self.explain(question)
        except RequestError as error:
            text = error_body(error.message, error.kind, code=error.code, param=error.param)
            self._answer(number, error.status, text)
        except Exception:
            log.exception("an explanation failed")
            text = error_body(INTERNAL.message, INTERNAL.kind, code=INTERNAL.code)
            self._answer(number, INTERNAL.status, text)
        else:
            self._answer(number, 200, msgspec.json.encode(told))

    async def explain(self, question: Explain) -> dict[str, Any]:
        """Return the decision as JSON. Raise RequestError as the request would be refused."""
        with DURING[INSPECT]:
            plan = await self.plan(question)
            now_s = time.monotonic()
            among = self._planner.eligible(plan, now_s)
            decision = self._planner.decide(plan, among, now_s)
        query, tokens = plan.query, plan.tokens
        return {
            "model": plan.model,
            "policy": decision.policy,
            "reason": decision.reason.value,
            "meaning": MEANINGS[decision.reason],
            "replica": self._fleet[decision.choice.slot].state.id,
            "tokens": query.prompt_tokens,
            "exact": decision.exact,
            "rung": tokens.rung.value if tokens is not None else None,
            "blocks": len(query.blocks) // HASH_BYTES,
            "block_tokens": query.block_tokens,
            "head_tokens": query.head_tokens or None,
            "session": bool(query.session),
            "panic": among.panic,
            "replicas": [
                self._row(decision, place) for place in range(len(decision.candidates.slots))
            ],
            "left_out": [
                {
                    "replica": self._fleet[slot].state.id,
                    "reason": left.value,
                    "why": LEFT_OUT_WORDS[left],
                }
                for slot, left in among.left_out.items()
            ],
        }

    async def plan(self, question: Explain) -> Plan:
        """Return the plan for the request. Raise RequestError."""
        path = question.path or _usual_path(question.body)
        route = route_of(path)
        if route.action not in _ROUTED:
            raise RequestError(400, "No replica is chosen for this path.", param="path")
        headers = question.headers
        request_id = next((value for name, value in headers if name == b"x-request-id"), b"")
        plan = Plan(route, path, headers, request_id, question.tenant)
        await self._planner.make(plan, question.body)
        return plan

    def _row(self, decision: Decision, place: int) -> dict[str, Any]:
        row = decision.row(place)
        return {
            "replica": self._fleet[row.slot].state.id,
            "chosen": place == decision.best,
            "matched_tokens": row.cached_tokens,
            "uncached_tokens": row.uncached_tokens,
            "queued_tokens": row.load.queued_tokens,
            "requests": row.load.requests,
            "of_other_gateways": decision.others(place),
            "cost": round(row.cost, 1),
            "prefill_tokens_per_s": round(self._router.progress.rate(row.slot)) or None,
        }
