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
from collections.abc import Callable

from tokenlane.admission.auth import Authenticator
from tokenlane.admission.policy import Admission, limited
from tokenlane.admission.queue import AdmissionQueue
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings
from tokenlane.errors import INTERNAL, RequestError
from tokenlane.fleet_state import FleetState, ProofNews
from tokenlane.gateway import body_reader, body_rewriter, refusals
from tokenlane.gateway.attempt import Attempt, Attempts
from tokenlane.gateway.body_reader import LONG_BODY_BYTES
from tokenlane.gateway.fleet import Fleet
from tokenlane.gateway.kept_responses import KeptResponses
from tokenlane.gateway.local_answers import LocalAnswers
from tokenlane.gateway.model_resolution import ModelResolver
from tokenlane.gateway.prompt_reader import PromptReader
from tokenlane.gateway.prover import Prover
from tokenlane.gateway.query_builder import QueryBuilder
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.replica_tokenizer import ReplicaTokenizer
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.http.exchange import Exchange
from tokenlane.protocols.bodies import OtherBody, goes_on_from, inspect
from tokenlane.protocols.field_rules import FieldRules
from tokenlane.protocols.routes import Action, Route, allow, kept_name, route_of
from tokenlane.routing.candidates import Eligible, Nobody
from tokenlane.routing.decision import Query
from tokenlane.routing.lease import LoadBoard
from tokenlane.routing.retry import Ending, Step
from tokenlane.routing.router import Router
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.stalls.stages import INSPECT, LOOP, METRICS, OTHER, ROUTE
from tokenlane.tokens.service import TokenService

log = logging.getLogger(__name__)


class Gateway:
    """A worker's requests. on_routed: told (slot, blocks, tenant) of each prefix sent to a replica.
    on_suspect: told of a slot whose replica could not be reached. on_proof, share: as Prover has
    them. kept: what is known of responses; without it, what this worker sees. authenticator: None
    where all may come in. replica_key: shown to replicas. tls: towards them."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
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
        self._settings = settings
        self._tokens = tokens
        self._recorder = recorder
        self._tracer = recorder.tracer
        self._authenticator = authenticator
        self._rules = FieldRules(settings.requests)
        self.kept = kept or KeptResponses()
        self.admission_queue: AdmissionQueue | None = None
        self._limit(settings)
        self.fleet = Fleet(settings.upstream, replica_key, tls)
        self.router = Router(settings.routing, board, health=settings.health)
        self.query_builder = QueryBuilder(settings.routing, self.router.draw)
        self.model_resolver = ModelResolver(
            settings, self.fleet, self.router, tokens, self.query_builder, recorder
        )
        self.prover = Prover(self.fleet, tokens.tokenizer, settings, recorder, on_proof, share)
        trust = self.prover.trust
        names = self.model_resolver.names
        self._local_answers = LocalAnswers(self.fleet, tokens, names, trust)
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
        self._prompts = PromptReader(
            settings, tokens, self.fleet, self.router, self.query_builder, self.prover
        )
        if settings.tokens.ask_replicas:
            asking = ReplicaTokenizer(self.fleet, self.router, settings.tokens, trust.claim)
            tokens.ask = asking.prompt
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
        before, self._settings = self._settings, settings
        self._authenticator = authenticator
        self._rules = FieldRules(settings.requests)
        self._limit(settings)
        self.fleet.configure(settings.upstream, replica_key, tls)
        self.query_builder.configure(settings.routing)
        self._attempts.configure(settings.upstream)
        if (settings.models, settings.routing) != (before.models, before.routing):
            # Shadow copies in flight end with the old resolver.
            self.model_resolver = ModelResolver(
                settings, self.fleet, self.router, self._tokens, self.query_builder, self._recorder
            )
            names, trust = self.model_resolver.names, self.prover.trust
            self._local_answers = LocalAnswers(self.fleet, self._tokens, names, trust)
        self._prompts.configure(settings)
        self.prover.configure(settings)

    def _limit(self, settings: Settings) -> None:
        admission, tenants = settings.admission, settings.auth.tenants
        workers = settings.server.workers
        if self.admission_queue is not None:
            self.admission_queue.configure(admission, tenants, workers)
        elif limited(admission, tenants):
            self.admission_queue = AdmissionQueue(
                Admission(admission, tenants, workers),
                admission.queue_deadline_s,
                self._recorder.shed,
                self._recorder.admitted,
            )

    def update(self, state: FleetState) -> None:
        """Adopt a new snapshot of the replicas."""
        LOOP.mark(ROUTE)
        self.fleet.update(state)
        self.router.update(state)
        self._tokens.adopt(self.fleet.bases)
        self.prover.trust.update(state)
        self._tokens.rehash(self.router.block_tokens())
        LOOP.mark(OTHER)

    def close(self) -> None:
        """Close the connections to replicas. Requests in flight are lost."""
        self.model_resolver.shadows.close()
        self.prover.close()
        self.fleet.close()

    async def handle(self, exchange: Exchange) -> None:
        """Serve one request, and record it whatever happens to it."""
        record = RequestRecord(exchange.started_s)
        record.request_id = exchange.request_id
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
            # The connection also ends a request whose body cannot be read; then it has answered.
            record.outcome = "gateway_error" if exchange.ended else "client_gone"
            raise
        except Exception:
            log.exception("a request failed for no foreseen reason")
            record.outcome = "gateway_error"
            exchange.fail(INTERNAL)
        finally:
            LOOP.mark(METRICS)
            del self.in_hand[record]
            record.ended_s = time.monotonic()
            self._recorder.record(record, exchange.status or 499)
            LOOP.mark(OTHER)

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
        if self.admission_queue is None:
            await self._admitted(exchange, route, record)
            return
        parent = self.query_builder.parent(exchange.headers)
        async with self.admission_queue.permit(
            record.tenant, exchange.announced_bytes, parent
        ) as permit:
            record.permit = permit
            await self._admitted(exchange, route, record)

    async def _admitted(self, exchange: Exchange, route: Route, record: RequestRecord) -> None:
        # The whole body, before anything is decided: routing needs the prompt.
        body = exchange.body or await _body(exchange)
        record.read_s = time.monotonic()
        if route.tokens and await self._local_answers.tokens(exchange, route, body, record):
            return
        if route.action is Action.KEPT:
            record.inspected_s = record.tokens_s = record.read_s
            LOOP.mark(ROUTE)
            named = kept_name(exchange.path)
            await self._owned(named, record.tenant)
            query = self.query_builder.unread(
                OtherBody(), self._tokens.block_tokens, exchange.headers
            )
            await self._answered(exchange, None, query, body, named, record)
            return

        if self._rules.on:
            body = await body_rewriter.by_rules(body, self._rules, route.kind)
        # A few typed fields, the rest raw. Unknown models end here, before they cost a render.
        if len(body) <= LONG_BODY_BYTES:
            request = inspect(route.kind, body)
        else:
            request = await body_reader.inspected(route.kind, body)
        named = goes_on_from(request)
        if named:
            await self._owned(named, record.tenant)
        if self.model_resolver.on:
            body = await self.model_resolver.resolve(exchange, request, body, record)
        model = request.model
        if model not in self.fleet.models:
            model = self.fleet.resolve(model)
        record.model = model if model in self.fleet.models else families.OTHER
        if record.tenant:
            body = await body_rewriter.for_tenant(body, request, record.tenant)
        record.inspected_s = time.monotonic()

        # The prompt's ids, and whether they fit: after the name, which says whose tokenizer reads
        # them, before a replica is chosen by them.
        unread = body
        query, body = await self._prompts.read(exchange, model, request, body, record)
        record.tokens_s = time.monotonic()
        if record.copy_to is not None:
            self.model_resolver.copy(exchange, request, unread, record)
        await self._answered(exchange, model, query, body, named, record)

    async def _owned(self, named: str, tenant: str) -> None:
        """Raise RequestError 404 for a response that is not known to be this tenant's."""
        if tenant:
            LOOP.mark(OTHER)
            owned = await self.kept.owns(named, tenant)
            LOOP.mark(INSPECT)
            if not owned:
                raise refusals.unknown_response(named)

    async def _answered(
        self,
        exchange: Exchange,
        model: str | None,
        query: Query,
        body: bytes,
        named: str,
        record: RequestRecord,
    ) -> None:
        """Choose a replica and try it; choose again as far as the retry table allows.

        named: the response that the request is about, or continues.
        """
        among = self._eligible(model, record.tokens_s)
        tried: set[int] = set()
        self._attempts.budget.request()
        while among.slots:
            likely = self.kept.homes.first(named, among, record.tenant) if named else among
            decision = record.decision = self.router.decide(query, likely, time.monotonic())
            tried.add(decision.choice.slot)
            left = len(among.slots) - 1
            attempt = Attempt(decision, len(tried), left, kept=left > 0 and named != "")
            sent = self._prompts.body_for(decision.choice.slot, body, record)
            step = await self._attempts.run(exchange, sent, attempt, record)
            if step is None:
                self._prompts.compare(record)
                self._remember(named, record, decision.choice.slot)
                return
            if step.ending is not Ending.NEXT:
                self._give_up(exchange, step, record)
                return
            among = self._eligible(model, time.monotonic()).without(tried)
        raise refusals.nobody(Nobody.DOWN)

    def _remember(self, named: str, record: RequestRecord, slot: int) -> None:
        """Remember which replica keeps the response asked for."""
        relay = record.relay
        if named and relay is not None and relay.head is not None and relay.head.status == 200:
            self.kept.homes.learn(named, slot, record.tenant)

    def _eligible(self, model: str | None, now_s: float) -> Eligible:
        among = self.router.eligible(model, now_s)
        if among.nobody is not None:
            raise refusals.nobody(among.nobody)
        return among

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


async def _body(exchange: Exchange) -> bytes:
    """Read a body that did not come with its head."""
    LOOP.mark(OTHER)
    body = await exchange.read_body()
    LOOP.mark(INSPECT)
    return body
