"""From a request to its query and the decision on it: the one way for requests, explanations and
shadow traffic.

Invariants:
- Nothing is leased, sent or counted here: a discarded plan leaves no trace but ids in the caches.
- The name comes before the ids, since it says whose tokenizer reads the prompt, and the tenant's
  salt before both are hashed: from there on the prompt shares nothing with equal ones of others.
"""

from functools import partial

import msgspec
from msgspec import UNSET

from tokenlane.admission.auth import tenant_salt
from tokenlane.config.settings import Settings
from tokenlane.errors import RequestError
from tokenlane.gateway import body_reader, refusals
from tokenlane.gateway.body_reader import LONG_BODY_BYTES
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.kept_responses import KeptResponses
from tokenlane.gateway.model_names import ModelNames
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.prompt_reader import PromptReader
from tokenlane.gateway.replica_body import ReplicaBody
from tokenlane.parts import RawBody, whole
from tokenlane.protocols.bodies import OtherBody
from tokenlane.protocols.field_rules import FieldRules
from tokenlane.protocols.inspection import goes_on_from, inspect, inspect_fields
from tokenlane.protocols.routes import Action, kept_name
from tokenlane.routing.candidates import Eligible
from tokenlane.routing.decision import Decision
from tokenlane.routing.router import Router
from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.stalls.stages import AWAITING, INSPECT


class Planner:
    """A worker's plans. kept: what is known of responses."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        router: Router,
        prompts: PromptReader,
        names: ModelNames,
        kept: KeptResponses,
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._prompts = prompts
        self._names = names
        self._kept = kept
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Replace the settings for new plans."""
        self._rules = FieldRules(settings.requests)

    async def make(self, plan: Plan, raw: RawBody) -> None:
        """Fill in the plan for a body. Raise RequestError for what is not sent to any replica."""
        if plan.route.action is Action.KEPT:
            plan.body, plan.named = ReplicaBody(whole(raw)), kept_name(plan.path)
            await self._own(plan)
        else:
            # A few typed fields, the rest raw.
            if len(raw) <= LONG_BODY_BYTES:
                self._inspect(plan, raw)
            else:
                await body_reader.beside_loop(partial(self._inspect, plan, raw))
            plan.named = goes_on_from(plan.request)
            if plan.named:
                await self._own(plan)
            # Unknown models are refused here, before they cost a render.
            self._resolve(plan)
            if plan.tenant:
                _salt(plan)
        plan.inspected_s = monotonic()
        await self.read(plan)

    async def read(self, plan: Plan) -> None:
        """Fill in the prompt's ids, and the query by them."""
        await self._prompts.read(plan)
        plan.tokens_s = monotonic()

    def eligible(self, plan: Plan, now_s: float) -> Eligible:
        """Return the replicas that may serve it now. Raise RequestError where none may."""
        among = self._router.eligible(plan.model, now_s)
        if among.nobody is not None:
            raise refusals.nobody(among)
        return among

    def decide(self, plan: Plan, among: Eligible, now_s: float) -> Decision:
        """Choose one of these: the replica that stores the named response, or else the policy's
        choice."""
        likely = self._kept.homes.first(plan.named, among, plan.tenant) if plan.named else among
        return self._router.decide(plan.query, likely, now_s)

    def _inspect(self, plan: Plan, received: RawBody) -> None:
        kind, rules = plan.route.kind, self._rules
        is_kept = not (rules.on or self._prompts.may_replace(kind))
        if is_kept:
            turn = self._prompts.begun(kind, received)
            # A tenant's salt goes behind the fields of a body that has none of its own.
            if turn is not None and not (plan.tenant and turn.request.cache_salt is not UNSET):
                plan.body, plan.turn, plan.request = ReplicaBody(received), turn, turn.request
                if self._names.on and self._names.changes(turn.request.model):
                    plan.body = plan.body.apart()
                return
            if not (plan.tenant or self._names.on):
                plan.body = ReplicaBody(received)
                plan.raw = plan.body.raw
                plan.request = inspect(kind, plan.raw)
                return
        raw = whole(received)
        plan.raw = raw if is_kept else b""
        plan.body = ReplicaBody.taken_apart(raw)
        fields = plan.body.fields
        if fields is None:
            # The body may be sent as it is where nothing has to be found in it.
            plan.request = inspect(kind, raw)
            if rules.on:
                raise _many_fields()
            return
        if rules.on:
            plan.body.change(rules.changes(fields, kind))
        plan.request = inspect_fields(kind, fields)

    async def _own(self, plan: Plan) -> None:
        """Raise RequestError 404 for a response that is not known to be this tenant's."""
        with AWAITING[INSPECT]:
            owned = await self._kept.owns(plan.named, plan.tenant)
        if plan.tenant and not owned:
            raise refusals.unknown_response(plan.named)

    def _resolve(self, plan: Plan) -> None:
        """Find the model that is meant, and the shadow that gets a copy."""
        names, name = self._names, plan.request.model
        if names.on and name is not None:
            model, key = name, 0
            if names.needs_key(name):
                key = self._key(plan)
            if name in names:
                plan.alias = name
                model = names.model(name, key, self._fleet.ready)
            if model != name:
                plan.rename(model)
            if names.shadowed(model):
                plan.shadow = names.shadow(model, key or self._key(plan))
            name = model
        if name not in self._fleet.models:
            name = self._fleet.resolve(name, names)
        plan.model = name
        if name is not None and name in self._fleet.models:
            plan.label = name

    def _key(self, plan: Plan) -> int:
        if plan.turn is not None:
            plan.turn.complete()
        return self._names.key(plan.request, plan.headers, plan.request_id, plan.tenant)


def _salt(plan: Plan) -> None:
    """Give the prompt its tenant's cache_salt. Raise RequestError 400."""
    request = plan.request
    if type(request) is OtherBody:
        return
    given = request.cache_salt
    if given is not UNSET and plan.body.fields is None:
        # A replica that reads the first of repeated keys must not find the client's own salt.
        raise _many_fields()
    request.cache_salt = tenant_salt(plan.tenant, given or None)
    plan.body.put("cache_salt", msgspec.json.encode(request.cache_salt))


def _many_fields() -> RequestError:
    return RequestError(
        400, "The body has too many fields, or one whose name is not text.", code="fields"
    )
