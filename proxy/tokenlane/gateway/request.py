"""The life of a request, from top to bottom. Every step says why it stands at this height.

Invariants:
- One coroutine per request; the relay runs in protocol callbacks and wakes it at the end.
- In-flight counts belong to leases, connections to pools; cancelling this coroutine (the client
  left) gives back both and aborts the replica's work within the same loop iteration.
- What to do after a failed attempt is the retry table's word, not this file's.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping

from tokenlane.admission.auth import Authenticator
from tokenlane.admission.policy import Admission, limited
from tokenlane.admission.queue import AdmissionQueue
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings
from tokenlane.errors import INTERNAL, RequestError
from tokenlane.fleet_state import FleetState, ProofNews
from tokenlane.gateway import refusals
from tokenlane.gateway.attempt import Attempt, Attempts
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.kept_responses import KeptResponses
from tokenlane.gateway.local_answers import LocalAnswers
from tokenlane.gateway.model_names import ModelNames
from tokenlane.gateway.plan import Plan
from tokenlane.gateway.planner import Planner
from tokenlane.gateway.prompt_reader import PromptReader
from tokenlane.gateway.prover import Prover
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.replica_tokenizer import ReplicaTokenizer
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.gateway.shadow import ShadowTraffic
from tokenlane.http.exchange import Exchange
from tokenlane.parts import RawBody, whole
from tokenlane.protocols.bodies import ResponsesBody
from tokenlane.protocols.dialects import GATEWAY_STOPPED
from tokenlane.protocols.routes import Action, Route, allow, route_of
from tokenlane.routing.lease import LoadBoard
from tokenlane.routing.retry import Ending, Step
from tokenlane.routing.router import Router
from tokenlane.runtime.clock import monotonic
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.stalls.stages import AWAITING, DURING, INSPECT, LOOP, METRICS, ROUTE
from tokenlane.tokens.model_tokenizers import ModelTokenizers
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Gateway:
    """A worker's requests. on_routed: told (slot, blocks, tenant) of each prefix sent to a replica.
    on_suspect: told of a slot whose replica could not be reached. on_proof, share: as Prover has
    them. kept: what is known of responses; without it, what this worker sees. authenticator: None
    where all may come in. replica_key: shown to replicas. tls: towards them."""

    def __init__(
        self,
        settings: Settings,
        tokenizers: Mapping[str, Tokenizer],
        board: LoadBoard,
        recorder: Recorder,
        *,
        on_routed: Callable[[int, bytes, str], object] | None = None,
        on_suspect: Callable[[int], object] | None = None,
        on_proof: Callable[[ProofNews], object] | None = None,
        share: tuple[int, int] = (0, 1),
        kept: KeptResponses | None = None,
        authenticator: Authenticator | None = None,
        replica_key: Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._recorder = recorder
        self._tracer = recorder.tracer
        self._authenticator = authenticator
        self.kept = kept or KeptResponses()
        self.admission_queue: AdmissionQueue | None = None
        self._limit(settings)
        self.fleet = Fleet(settings.upstream, replica_key, tls)
        self.router = Router(settings.routing, board, health=settings.health)
        models = self._tokenizers = ModelTokenizers(tokenizers)
        self.prover = Prover(self.fleet, models.get, settings, recorder, on_proof, share)
        trust = self.prover.trust
        asking = ReplicaTokenizer(self.fleet, self.router, settings.tokens, trust.claim)
        self.tokens = TokenService(
            settings.tokens,
            models,
            settings.routing.block_tokens or 16,
            asking.prompt if settings.tokens.ask_replicas else None,
        )
        self._query_builder = QueryBuilder(settings.routing, self.router.draw)
        self._names = ModelNames(settings.models, settings.routing.session_headers)
        self._prompts = PromptReader(
            settings, self.tokens, self.fleet, self.router, self._query_builder, self.prover
        )
        self.planner = Planner(
            settings, self.fleet, self.router, self._prompts, self._names, self.kept
        )
        self.shadows = ShadowTraffic(
            settings.models, self.fleet, self.router, self.planner, recorder.shadowed
        )
        self._local_answers = LocalAnswers(self.fleet, models, self._names, trust)
        self._attempts = Attempts(
            settings.upstream,
            self.fleet,
            self.router,
            recorder,
            on_routed,
            on_suspect,
            self.kept.made,
            trust.refused,
        )
        self.draining = False
        self.in_hand: dict[RequestRecord, bytes] = {}

    def configure(
        self,
        settings: Settings,
        authenticator: Authenticator | None,
        replica_key: Secret | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        """Replace the settings for new requests. Requests in flight keep the old ones, and the
        sizes of blocks and caches stay those of the start. Raises ConfigError for an unknown policy
        and changes nothing."""
        self.router.configure(settings.routing, settings.health)
        self._authenticator = authenticator
        self._limit(settings)
        self.fleet.configure(settings.upstream, replica_key, tls)
        self._query_builder.configure(settings.routing)
        self._names.configure(settings.models, settings.routing.session_headers)
        self._attempts.configure(settings.upstream)
        self._prompts.configure(settings)
        self.planner.configure(settings)
        self.shadows.configure(settings.models)
        self.prover.configure(settings)

    def _limit(self, settings: Settings) -> None:
        admission, tenants = settings.admission, settings.auth.tenants
        workers = settings.server.workers
        if self.admission_queue is not None:
            self.admission_queue.configure(admission, tenants, workers)
        elif limited(admission, tenants):
            self.admission_queue = AdmissionQueue(
                Admission(admission, tenants, workers, shares=bool(settings.fleet.store)),
                admission.queue_deadline_s,
                self._recorder.shed,
                self._recorder.admitted,
            )

    def update(self, state: FleetState) -> None:
        """Adopt a new snapshot of the replicas."""
        with DURING[ROUTE]:
            self.fleet.update(state)
            self.router.update(state)
            self._tokenizers.adopt(self.fleet.bases)
            self.prover.trust.update(state)
            self.tokens.rehash(self.router.block_tokens())

    def close(self) -> None:
        """Close the connections to replicas. Requests in flight are lost."""
        self.shadows.close()
        self.prover.close()
        self.tokens.close()
        self.fleet.close()

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request, and record it whatever happens to it."""
        record = RequestRecord(exchange.started_s)
        record.request_id = exchange.request_id
        record.method = exchange.method
        self.in_hand[record] = exchange.request_id
        if self._tracer is not None:
            record.trace = self._tracer.begin(exchange.header(b"traceparent"))
        LOOP.mark(INSPECT)
        try:
            await self._serve(exchange, record)
        except RequestError as error:
            exchange.fail(error)
            if record.outcome == "ok":
                record.outcome = "gateway_error"
        except asyncio.CancelledError:
            if exchange.stopped:
                exchange.fail(GATEWAY_STOPPED)
            # The connection also ends a request whose body cannot be read; then it has answered.
            record.outcome = "gateway_error" if exchange.ended else "client_gone"
            raise
        except Exception:
            log.exception("a request failed unexpectedly")
            record.outcome = "gateway_error"
            exchange.fail(INTERNAL)
        finally:
            with DURING[METRICS]:
                del self.in_hand[record]
                record.ended_s = monotonic()
                record.error_code = exchange.error_code
                self._recorder.record(record, exchange.status or 499)

    async def _serve(self, exchange: Exchange, record: RequestRecord) -> None:
        # Dispatch first: an unknown path costs neither a body nor a tokenizer.
        route = route_of(exchange.path)
        record.route = route.path
        # A browser asks without a key whether it may ask with one.
        if exchange.preflight():
            return
        # A client without a valid key learns nothing else, and no byte of its body is read.
        if self._authenticator is not None:
            record.tenant = families.OTHER
            record.tenant = self._authenticator.tenant(route, exchange.headers, time.time())
        allow(route, exchange.method, exchange.path)
        if route.action is Action.HEALTH:
            self._local_answers.health(exchange, draining=self.draining)
            return
        if route.action is Action.MODELS:
            self._local_answers.models(exchange)
            return
        # A permit before the body: a request that is refused costs neither memory nor a parse.
        queue = self.admission_queue
        if queue is None:
            await self._admitted(exchange, route, record)
            return
        if exchange.head.chunked and queue.admission.sized:  # only its end tells its size
            await _body(exchange)
        parent = self._query_builder.parent(exchange.headers)
        async with queue.permit(record.tenant, exchange.announced_bytes, parent) as permit:
            record.permit = permit
            await self._admitted(exchange, route, record)

    async def _admitted(self, exchange: Exchange, route: Route, record: RequestRecord) -> None:
        # The whole body, before anything is decided: routing needs the prompt.
        body = exchange.body or await _body(exchange)
        record.read_s = monotonic()
        answers = self._local_answers
        if route.tokens and await answers.tokens(exchange, route, whole(body), record):
            return
        plan = record.plan = Plan(
            route, exchange.path, exchange.headers, exchange.request_id, record.tenant
        )
        # What the settings change in it, its model, the prompt's ids and whether they fit: all
        # that is known of a request before one replica is.
        try:
            await self.planner.make(plan, body)
        finally:
            record.model = plan.label
        if plan.shadow is not None:
            self.shadows.offer(exchange.head, plan)
        await self._answered(exchange, plan, record)

    async def _answered(self, exchange: Exchange, plan: Plan, record: RequestRecord) -> None:
        """Choose a replica and try it; choose again as far as the retry table allows."""
        among = self.planner.eligible(plan, plan.tokens_s)
        tried: set[int] = set()
        self._attempts.budget.request()
        while among.slots:
            decision = record.decision = self.planner.decide(plan, among, monotonic())
            slot = decision.choice.slot
            number, left = len(tried) + 1, len(among.slots) + len(among.spared) - 1
            kept, request = left > 0 and plan.named != "", plan.request
            stored = type(request) is not ResponsesBody or request.store is not False
            attempt = Attempt(decision, number, left, kept=kept, stored=stored)
            sent = None if plan.forwards else plan.body.made
            if sent is None:
                sent = await self._prompts.body_for(slot, plan)
                if slot not in self.fleet:  # removed while a thread made the body
                    among = self.planner.eligible(plan, monotonic()).without(tried)
                    continue
            tried.add(slot)
            step = await self._attempts.run(exchange, sent, attempt, record)
            if step is None:
                usage = record.relay.usage if record.relay is not None else None
                self._prompts.compare(plan, decision, usage)
                self._remember(plan, record, slot)
                return
            if step.ending is not Ending.NEXT:
                self._give_up(exchange, step, record)
                return
            among = self.planner.eligible(plan, monotonic()).without(tried)
        raise refusals.nobody(among)

    def _remember(self, plan: Plan, record: RequestRecord, slot: int) -> None:
        """Remember which replica keeps the response asked for."""
        relay = record.relay
        if plan.named and relay is not None and relay.head is not None and relay.head.status == 200:
            self.kept.homes.learn(plan.named, slot, plan.tenant)

    def _give_up(self, exchange: Exchange, step: Step, record: RequestRecord) -> None:
        """Send the client what it gets when no further attempt is made."""
        record.outcome = "truncated" if step.ending is Ending.BREAK else "upstream_error"
        if step.ending is Ending.PASS and record.relay is not None:
            # The replica's own answer, which was held back while another might have done better.
            record.relay.release(
                b"x-should-retry: false\r\n" if step.should_retry is False else b""
            )
        elif step.ending is Ending.ERROR:
            exchange.fail(refusals.upstream(step))


async def _body(exchange: Exchange) -> RawBody:
    """Read a body that did not come with its head."""
    with AWAITING[INSPECT]:
        return await exchange.read_parts()
