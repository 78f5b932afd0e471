"""Find a prompt's ids before its request is routed, and apply what follows from them.

Invariants:
- Where nothing needs ids, none are made. Missing ids are a reason, not an error.
- A prompt that exceeds every replica's context is refused before one computes anything.
"""

from random import random
from typing import Final

from tokenlane.config.settings import Settings, TokenSettings
from tokenlane.gateway import forwarding
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.forwarding import Form
from tokenlane.gateway.id_trust import Claim
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.prover import Prover
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.parts import RawBody
from tokenlane.prompt import Prompt
from tokenlane.protocols import context_window
from tokenlane.protocols.bodies import Kind, OtherBody, Prompted
from tokenlane.protocols.inspection import MESSAGES_FIELDS, is_ids, kinds_of
from tokenlane.relay.answer_fields import Usage
from tokenlane.routing.decision import Decision
from tokenlane.routing.router import Router
from tokenlane.runtime.clock import monotonic
from tokenlane.runtime.cohorts import step_aside
from tokenlane.telemetry.stalls.stages import AWAITING, LOOP, ROUTE, TOKENIZE_LOCAL
from tokenlane.tokens.caches.body_prefixes import OPENING_BYTES
from tokenlane.tokens.next_turn import NextTurn
from tokenlane.tokens.service import TokenService

# Found once, as in tokenlane.protocols.routes.
_COMPLETION: Final = Kind.COMPLETION
# Between two samples of a kind from one replica: each costs it a prompt's template and encoding,
# and one that answers hundreds a second is known as well by one of them.
_SAMPLE_GAP_S: Final = 1.0


class PromptReader:
    """A worker's prompts. prover: which replicas make the same ids."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
        fleet: Fleet,
        router: Router,
        query_builder: QueryBuilder,
        prover: Prover,
    ) -> None:
        self._tokens = tokens
        self._fleet = fleet
        self._router = router
        self._query_builder = query_builder
        self._trust = prover.trust
        self._claims = prover.trust.claims
        self._prover = prover
        # By slot: the fraction of a check that answers have accumulated, and when the next check
        # and the next prompt that goes as text are due.
        self._saved: dict[int, float] = {}
        self._check_due_s: dict[int, float] = {}
        self._text_due_s: dict[int, float] = {}
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Replace the settings from the next request on; the router has its own already."""
        tokens = settings.tokens
        self._settings: TokenSettings = tokens
        self._wants_ids = (
            self._router.uses_prefix or tokens.context_check or tokens.forward_tokens != "off"
        )

    def may_replace(self, kind: Kind) -> bool:
        """Return whether ids may take the place of the text in such requests; in others they only
        go beside it."""
        return kind is _COMPLETION and self._settings.forward_tokens != "off"

    def begun(self, kind: Kind, raw: RawBody) -> NextTurn | None:
        """Return what is new in a body that begins as a known one, and goes to replicas as it
        is."""
        if len(raw) < OPENING_BYTES or kind not in MESSAGES_FIELDS or not self._wants_ids:
            return None
        return self._tokens.begun(kind, raw)

    async def read(self, plan: Plan) -> None:
        """Fill in the ids of a plan's prompt, as far as anybody wants them, and its query. Raise
        RequestError for a prompt that no replica has room for."""
        request, headers, tenant = plan.request, plan.headers, plan.tenant
        query_builder, block_tokens = self._query_builder, self._tokens.block_tokens
        if type(request) is OtherBody or not self._wants_ids:
            LOOP.mark(ROUTE)
            plan.query = query_builder.unread(request, block_tokens, headers)
            return
        model = plan.model or ""
        limit_tokens = context_window.NO_LIMIT
        kinds = kinds_of(request)
        claim = self._claims.get((model, kinds)) or self._trust.claim(model, kinds)
        if self._settings.context_check and claim.everywhere:
            limit_tokens = self._fleet.context_tokens.get(model, context_window.NO_LIMIT)
        # Make the ids, off the loop where that takes long.
        LOOP.mark(TOKENIZE_LOCAL)
        keeps_ids = self._settings.forward_tokens == "all" and len(claim.proven) > 0
        known = self._tokens.known(model, request, plan.turn, keeps_ids=keeps_ids)
        if isinstance(known, bytes):
            known = self._tokens.plain(model, request, known, plan.raw) or await self._tokens.make(
                model,
                request,
                known,
                limit_tokens=limit_tokens,
                tenant=tenant,
                raw=plan.raw,
                turn=plan.turn,
                keeps_ids=keeps_ids,
            )
            made = True
        else:
            known.run_s = monotonic() - plan.inspected_s
            made = plan.turn is not None
        if made:
            with AWAITING[ROUTE]:
                await step_aside()
        else:
            LOOP.mark(ROUTE)
        plan.tokens = known
        prompt = known.prompt
        if prompt is not None:
            if prompt.tokens > limit_tokens:
                context_window.check(prompt, limit_tokens, text=not is_ids(request))
            if claim.kinds:
                plan.claim = claim
        plan.form = self._form(claim, request, prompt, plan.body)
        plan.forwards = plan.form is forwarding.PROVEN
        plan.query = query_builder.query(
            plan.model, request, prompt, known.reason, block_tokens, headers, tenant, claim.silent
        )

    def _form(
        self, claim: Claim, request: Prompted, prompt: Prompt | None, body: ReplicaBody
    ) -> Form:
        """Return what replicas that have proven its ids get of a request."""
        form = forwarding.may(request, prompt, claim, self._settings.forward_tokens)
        if form is forwarding.PROVEN:
            if not body.takes_ids(request):
                return forwarding.FIELDS
            if self._tokens.asks(claim.model, request):
                return forwarding.ASKED
        return form

    async def body_for(self, slot: int, plan: Plan) -> RawBody:
        """Return the body that this replica gets: with ids, where it has proven that it makes the
        same. Some of these go as text, so that the answer's usage is the replica's own count."""
        if not plan.forwards:
            return await plan.body.text()
        assert plan.claim is not None
        assert plan.tokens is not None
        prompt, limit_tokens = plan.tokens.prompt, self._fleet[slot].state.max_model_tokens
        assert prompt is not None
        if slot not in plan.claim.proven:
            plan.form = forwarding.UNPROVEN
        elif limit_tokens is not None and prompt.tokens > limit_tokens:
            plan.form = forwarding.LONG
        elif random() < self._settings.as_text_ratio and is_due(
            self._text_due_s, slot, monotonic()
        ):
            plan.form = forwarding.SAMPLE
        else:
            plan.form = forwarding.PROVEN
            assert type(plan.request) is not OtherBody
            listed = self._tokens.listed
            return await plan.body.with_ids(plan.request, prompt, listed)
        return await plan.body.text()

    def compare(self, plan: Plan, decision: Decision, usage: Usage | None) -> None:
        """Compare the replica's count with the gateway's; for some prompts, compare id by id."""
        claim, asked = plan.claim, plan.request
        if claim is None or type(asked) is OtherBody:
            return
        slot = decision.choice.slot
        if slot in claim.silent or slot not in self._fleet:
            return
        assert plan.tokens is not None
        prompt = plan.tokens.prompt
        assert prompt is not None
        # For forwarded ids the count is mostly their own number, which proves nothing.
        if usage is not None and usage.prompt_tokens != prompt.tokens:
            self._trust.mismatch(slot, claim)
            self._check(slot, plan, prompt)
            return
        # Accumulated instead of drawn, so that checks never exceed the share.
        saved = self._saved.get(slot, 0.0) + self._settings.check_ratio
        due = saved >= 1.0 and is_due(self._check_due_s, slot, monotonic())
        if due and self._check(slot, plan, prompt):
            saved = 0.0
        self._saved[slot] = saved

    def _check(self, slot: int, plan: Plan, prompt: Prompt) -> bool:
        """Ask the replica for the ids. Return False if there is no room for that now."""
        claim, asked = plan.claim, plan.request
        assert claim is not None
        assert type(asked) is not OtherBody
        if plan.turn is not None:
            plan.turn.complete()
        return self._prover.check(slot, claim, asked, prompt.ids)


def is_due(due_s: dict[int, float], slot: int, now_s: float) -> bool:
    """Return whether a sample of this replica is due, and if so set when the next one is."""
    if now_s < due_s.get(slot, 0.0):
        return False
    due_s[slot] = now_s + _SAMPLE_GAP_S
    return True
