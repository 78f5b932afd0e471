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
from functools import partial

from tokenlane.admission.auth import Door
from tokenlane.admission.policy import Admission, limited
from tokenlane.admission.queue import Gate, Place
from tokenlane.config.secret import Secret
from tokenlane.config.settings import Settings
from tokenlane.errors import INTERNAL, RequestError, UpstreamError
from tokenlane.fleet_state import FleetState
from tokenlane.gateway import body_edits, refusals
from tokenlane.gateway.answer_headers import AnswerLines
from tokenlane.gateway.attempt import Attempt, Failures, head_for
from tokenlane.gateway.local_answers import Local
from tokenlane.gateway.model_resolution import Naming
from tokenlane.gateway.parity import Parity
from tokenlane.gateway.prompt_reader import PromptReader
from tokenlane.gateway.query_builder import Asking
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.replica_tokenizer import Inquiry
from tokenlane.gateway.request_record import Life
from tokenlane.gateway.upstreams import Fleet
from tokenlane.http.exchange import Exchange
from tokenlane.protocols.bodies import OtherBody, goes_on_from, inspect
from tokenlane.protocols.field_rules import Rules
from tokenlane.protocols.routes import ROUTES, Action, Route, allow, kept_name, route_of
from tokenlane.relay.response import Relay, RelayEnd
from tokenlane.routing.candidates import Eligible, Nobody
from tokenlane.routing.decision import Query
from tokenlane.routing.lease import Lease, LoadBoard
from tokenlane.routing.response_homes import Homes
from tokenlane.routing.retry import Ending, Phase, Step
from tokenlane.routing.router import Router
from tokenlane.runtime.cohorts import step_aside
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.stalls.stages import INSPECT, LOOP, METRICS, OTHER, RELAY, ROUTE
from tokenlane.tokens.service import TokenService

log = logging.getLogger(__name__)


class Gateway:
    """A worker's requests. on_routed: told (slot, blocks, tenant) of each prefix sent to a replica.
    on_suspect: told of a slot whose replica could not be reached. door: None where all may come
    in. replica_key: shown to replicas. tls: towards them."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
        board: LoadBoard,
        recorder: Recorder,
        *,
        on_routed: Callable[[int, bytes, str], object] | None = None,
        on_suspect: Callable[[int], object] | None = None,
        door: Door | None = None,
        replica_key: Secret | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._recorder = recorder
        self._tracer = recorder.tracer
        self._on_routed = on_routed
        self._door = door
        self._rules = Rules(settings.requests)
        self._homes = Homes()
        self._lines = AnswerLines()
        self.gate: Gate | None = None
        self._limit(settings)
        self.fleet = Fleet(settings.upstream, replica_key, tls)
        self.router = Router(settings.routing, board, health=settings.health)
        self.asking = Asking(settings.routing, self.router.draw)
        self.naming = Naming(settings, self.fleet, self.router, tokens, self.asking, recorder)
        self._local = Local(self.fleet, tokens, self.naming.names)
        self._failures = Failures(settings.upstream, self.router, recorder, on_suspect)
        self.parity = Parity(tokens.tokenizer, recorder.mismatch)
        self._prompts = PromptReader(
            settings, tokens, self.fleet, self.router, self.asking, self.parity
        )
        if settings.tokens.ask_replicas:
            trusts = self.parity.trusts
            tokens.ask = Inquiry(self.fleet, self.router, settings.tokens, trusts).prompt
        self.draining = False
        self.in_hand: dict[Life, bytes] = {}

    def configure(
        self,
        settings: Settings,
        door: Door | None,
        replica_key: Secret | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        """Other settings, whole, for what comes; what is under way goes on. Of its tokens' and
        blocks' settings a gateway keeps those of its start. Raises ConfigError for a policy that
        there is not, and then nothing is different. A key or context that is the same object is
        unchanged."""
        self.router.configure(settings.routing, settings.health)
        before, self._settings = self._settings, settings
        self._door = door
        self._rules = Rules(settings.requests)
        self._limit(settings)
        self.fleet.configure(settings.upstream, replica_key, tls)
        self.asking.configure(settings.routing)
        self._failures.configure(settings.upstream)
        if (settings.models, settings.routing) != (before.models, before.routing):
            # Copies that are under way end with the old one.
            self.naming = Naming(
                settings, self.fleet, self.router, self._tokens, self.asking, self._recorder
            )
            self._local = Local(self.fleet, self._tokens, self.naming.names)
        self._prompts.configure(settings)

    def _limit(self, settings: Settings) -> None:
        admission, tenants = settings.admission, settings.auth.tenants
        workers = settings.server.workers
        if self.gate is not None:
            self.gate.configure(admission, tenants, workers)
        elif limited(admission, tenants):
            self.gate = Gate(
                Admission(admission, tenants, workers),
                admission.queue_deadline_s,
                self._recorder.shed,
                self._recorder.admitted,
            )

    def update(self, state: FleetState) -> None:
        """A new snapshot of the replicas."""
        LOOP.mark(ROUTE)
        self.fleet.update(state)
        self.router.update(state)
        self._tokens.adopt(self.fleet.bases)
        self._tokens.rehash(self.router.block_tokens())
        LOOP.mark(OTHER)

    def close(self) -> None:
        """Closes the connections to replicas; what is in flight is lost."""
        self.naming.shadows.close()
        self.parity.close()
        self.fleet.close()

    async def handle(self, exchange: Exchange) -> None:
        """One request, recorded whatever happens to it."""
        life = Life(exchange.started_s)
        life.request_id = exchange.request_id
        self.in_hand[life] = exchange.request_id
        if self._tracer is not None:
            life.trace = self._tracer.begin(exchange.header(b"traceparent"))
        LOOP.mark(INSPECT)
        try:
            await self._serve(exchange, life)
        except RequestError as error:
            exchange.fail(error)
            if life.outcome == "ok":
                life.outcome = "gateway_error"
        except asyncio.CancelledError:
            # The connection also ends a request whose body cannot be read; then it has answered.
            life.outcome = "gateway_error" if exchange.ended else "client_gone"
            raise
        except Exception:
            log.exception("a request failed for no foreseen reason")
            life.outcome = "gateway_error"
            exchange.fail(INTERNAL)
        finally:
            LOOP.mark(METRICS)
            del self.in_hand[life]
            life.ended_s = time.monotonic()
            self._recorder.record(life, exchange.status or 499)
            LOOP.mark(OTHER)

    async def _serve(self, exchange: Exchange, life: Life) -> None:
        # Dispatch first: an unknown path costs neither a body nor a tokenizer.
        route = route_of(exchange.path)
        life.route = route.path
        # A browser asks without a key whether it may ask with one.
        if exchange.preflight():
            return
        # Who has no key learns nothing else, and not a byte of the body is read.
        if self._door is not None:
            life.tenant = families.OTHER
            life.tenant = self._door.tenant(route, exchange.headers, time.time())
        allow(route, exchange.method, exchange.path)
        if route.action is Action.HEALTH:
            self._local.health(exchange, draining=self.draining)
            return
        if route.action is Action.MODELS:
            self._local.models(exchange)
            return
        # A place before the body: what there is no time for costs neither memory nor a parse.
        if self.gate is None:
            await self._admitted(exchange, route, life)
            return
        parent = self.asking.parent(exchange.headers)
        async with self.gate.place(life.tenant, exchange.announced_bytes, parent) as place:
            life.place = place
            await self._admitted(exchange, route, life)

    async def _admitted(self, exchange: Exchange, route: Route, life: Life) -> None:
        # The whole body, before anything is decided: routing needs the prompt.
        body = exchange.body or await _body(exchange)
        life.read_s = time.monotonic()
        if route.tokens and await self._local.tokens(exchange, route, body, life):
            return
        if route.action is Action.KEPT:
            life.inspected_s = life.tokens_s = life.read_s
            LOOP.mark(ROUTE)
            query = self.asking.unread(OtherBody(), self._tokens.block_tokens, exchange.headers)
            await self._answered(exchange, None, query, body, kept_name(exchange.path), life)
            return

        if self._rules.on:
            body = await body_edits.by_rules(body, self._rules, route.kind)
        # A few typed fields, the rest raw. Unknown models end here, before they cost a render.
        request = inspect(route.kind, body)
        if self.naming.on:
            body = await self.naming.resolve(exchange, request, body, life)
        model = request.model
        if model not in self.fleet.models:
            model = self.fleet.resolve(model)
        life.model = model if model in self.fleet.models else families.OTHER
        if life.tenant:
            body = await body_edits.for_tenant(body, request, life.tenant)
        life.inspected_s = time.monotonic()

        # The prompt's ids, and whether they fit: after the name, which says whose tokenizer reads
        # them, before a replica is chosen by them.
        unread = body
        query, body = await self._prompts.read(exchange, model, request, body, life)
        life.tokens_s = time.monotonic()
        if life.copy_to is not None:
            self.naming.copy(exchange, request, unread, life)
        await self._answered(exchange, model, query, body, goes_on_from(request), life)

    async def _answered(
        self,
        exchange: Exchange,
        model: str | None,
        query: Query,
        body: bytes,
        named: str,
        life: Life,
    ) -> None:
        """named: the response that the request is about, or goes on from."""
        # Who may, who does, and why; again after a failure, as far as the retry table allows.
        among = self._eligible(model, life.tokens_s)
        tried: set[int] = set()
        self._failures.budget.request()
        while among.slots:
            likely = self._homes.first(named, among) if named else among
            decision = life.decision = self.router.decide(query, likely, time.monotonic())
            tried.add(decision.choice.slot)
            left = len(among.slots) - 1
            attempt = Attempt(decision, len(tried), left, kept=left > 0 and named != "")
            step = await self._attempt(exchange, body, attempt, life)
            if step is None:
                self._prompts.compare(model, life)
                self._remember(named, life, decision.choice.slot)
                return
            if step.ending is not Ending.NEXT:
                self._give_up(exchange, step, life)
                return
            among = self._eligible(model, time.monotonic()).without(tried)
        raise refusals.nobody(Nobody.DOWN)

    def _remember(self, named: str, life: Life, slot: int) -> None:
        """Where the response is kept that was asked for, and the one that was made."""
        relay = life.relay
        if relay is None or relay.head is None or relay.head.status != 200:
            return
        for name in (named, relay.made):
            if name:
                self._homes.learn(name, slot)

    def _eligible(self, model: str | None, now_s: float) -> Eligible:
        among = self.router.eligible(model, now_s)
        if among.nobody is not None:
            raise refusals.nobody(among.nobody)
        return among

    async def _attempt(
        self, exchange: Exchange, body: bytes, attempt: Attempt, life: Life
    ) -> Step | None:
        """One replica: lease, connection, request, answer. Returns what follows a failure, None
        where there is nothing left to do."""
        choice, query = attempt.choice, attempt.decision.query
        replica = self.fleet[choice.slot]
        life.replica, life.attempts = replica.state.id, attempt.number
        life.routed_s = now_s = time.monotonic()
        with self.router.attempt(choice, query, now_s) as lease:
            LOOP.mark(OTHER)
            await step_aside()
            LOOP.mark(ROUTE)
            connection = replica.pool.idle()
            if connection is None:
                LOOP.mark(OTHER)
                try:
                    connection = await replica.pool.connect()
                except UpstreamError as error:
                    LOOP.mark(ROUTE)
                    self._failures.unreachable(replica, error)
                    return self._failures.after(attempt, Phase.UNSENT, error.reason)
            LOOP.mark(RELAY)
            relay = Relay(
                exchange,
                connection,
                self._lines.of(replica.label, attempt.decision),
                dialect=ROUTES[life.route].dialect,
                may_retry=self._failures.may_replace(attempt),
                kept=attempt.kept,
                marked=ROUTES[life.route].ends_marked,
                told=ROUTES[life.route].action is Action.KEPT,
                on_computed=partial(_computed, lease, life.place),
            )
            life.relay = relay
            exact = attempt.decision.exact
            life.cached_tokens = choice.cached_tokens if exact else None
            request = head_for(replica, exchange, lease, life.trace, len(body))
            try:
                connection.send(exchange.head.method, [request, body], relay)
                life.sent_s = time.monotonic()
                if exact and self._on_routed is not None:
                    self._on_routed(choice.slot, query.blocks, query.tenant)
                LOOP.mark(OTHER)
                end = await relay.done
                LOOP.mark(ROUTE)
            except asyncio.CancelledError:
                connection.abort(relay)
                raise
        if end is RelayEnd.COMPLETE:
            if relay.failed:
                if relay.aborted:
                    life.outcome = "upstream_error"
                self._failures.failed(replica, relay.happened())
            elif self.router.health.troubled:
                self.router.health.served(choice.slot)
            return None
        happened = relay.happened()
        if happened == "empty":
            self.router.doubt(choice.slot, time.monotonic())
        if happened != "elsewhere":
            self._failures.failed(replica, happened)
        return self._failures.after(attempt, relay.phase(), happened)

    def _give_up(self, exchange: Exchange, step: Step, life: Life) -> None:
        """No further attempt: what the client gets."""
        life.outcome = "truncated" if step.ending is Ending.BREAK else "upstream_error"
        if step.ending is Ending.PASS and life.relay is not None:
            # The replica's own answer, which was held back while another might have done better.
            life.relay.release(b"x-should-retry: false\r\n" if step.should_retry is False else b"")
        elif step.ending is Ending.ERROR:
            exchange.fail(refusals.upstream(step))


def _computed(lease: Lease, place: Place | None) -> None:
    # Not the life: it holds the relay that holds this, and a cycle is the collector's work.
    lease.first_byte(time.monotonic())
    if place is not None:
        place.computed()


async def _body(exchange: Exchange) -> bytes:
    """A body that did not come with its head."""
    LOOP.mark(OTHER)
    body = await exchange.read_body()
    LOOP.mark(INSPECT)
    return body
