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

from proxy import context, refusals, rewrite
from proxy.admission import Admission, limited
from proxy.asked import Asking
from proxy.auth import Door
from proxy.body import ChatBody, CompletionBody, OtherBody, inspect
from proxy.errors import INTERNAL, RequestError, UpstreamError
from proxy.fleet import NO_LIMIT, Fleet, Replica
from proxy.gate import Gate, Place
from proxy.life import Life, Recorder
from proxy.local import Local
from proxy.model import FleetState
from proxy.parity import Parity
from proxy.routes import ROUTES, UNSERVED, Action, Route, allow
from proxy.routing.budget import RetryBudget
from proxy.routing.candidates import Eligible, Nobody
from proxy.routing.decision import Choice, Decision
from proxy.routing.lease import Lease, LoadBoard
from proxy.routing.retry import Ending, Phase, Step, may_replace, next_step
from proxy.routing.router import Router
from proxy.rules import Rules
from proxy.secret import Secret
from proxy.settings import Settings
from proxy.telemetry import families
from proxy.telemetry.stages import INSPECT, LOOP, METRICS, OTHER, RELAY, ROUTE, TOKENIZE_LOCAL
from proxy.tokens.keys import is_ids
from proxy.tokens.service import TokenService
from proxy.wire.exchange import Exchange
from proxy.wire.headers import request_head
from proxy.wire.relay import Relay, RelayEnd

log = logging.getLogger(__name__)


class _Attempt:
    """number: 1 for the first. left: candidates not tried yet."""

    __slots__ = ("choice", "decision", "left", "number")

    def __init__(self, decision: Decision, choice: Choice, number: int, left: int) -> None:
        self.decision = decision
        self.choice = choice
        self.number = number
        self.left = left


class Gateway:
    """A worker's requests. on_routed: told (slot, blocks) of each prefix sent to a replica.
    on_suspect: told of a slot whose replica could not be reached. door: None where all may come
    in. replica_key: shown to replicas. tls: towards them."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenService,
        board: LoadBoard,
        recorder: Recorder,
        *,
        on_routed: Callable[[int, bytes], object] | None = None,
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
        self._on_suspect = on_suspect
        self._door = door
        self._rules = Rules(settings.requests)
        self.gate: Gate | None = None
        if limited(settings.admission, settings.auth.tenants):
            self.gate = Gate(
                Admission(settings.admission, settings.auth.tenants, settings.server.workers),
                settings.admission.queue_deadline_s,
                recorder.shed,
                recorder.admitted,
            )
        self._route_lines: dict[tuple[bytes, str, str], bytes] = {}
        self.fleet = Fleet(settings.upstream, replica_key, tls)
        self._local = Local(self.fleet, tokens)
        self.router = Router(settings.routing, board, health=settings.health)
        self.asking = Asking(settings.routing, self.router.draw)
        self._budget = RetryBudget(
            settings.upstream.retry_budget_ratio, settings.upstream.retry_budget_burst_count
        )
        self.parity = Parity(tokens.tokenizer, recorder.mismatch)
        # Where nothing consumes ids, none are made.
        self._wants_ids = (
            self.router.uses_prefix
            or settings.tokens.context_check
            or settings.tokens.forward_tokens != "off"
        )
        self.draining = False
        self.in_hand: dict[Life, bytes] = {}

    def update(self, state: FleetState) -> None:
        """A new snapshot of the replicas."""
        LOOP.mark(ROUTE)
        self.fleet.update(state)
        self.router.update(state)
        self._tokens.rehash(self.router.block_tokens())
        LOOP.mark(OTHER)

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
        route = ROUTES.get(exchange.path, UNSERVED)
        life.route = route.path
        # Who has no key learns nothing else, and not a byte of the body is read.
        if self._door is not None:
            life.tenant = families.OTHER
            life.tenant = self._door.tenant(route, exchange.headers, time.time())
        allow(route, exchange.method)
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
        async with self.gate.place(life.tenant, exchange.announced_bytes) as place:
            life.place = place
            await self._admitted(exchange, route, life)

    async def _admitted(self, exchange: Exchange, route: Route, life: Life) -> None:
        # The whole body, before anything is decided: routing needs the prompt.
        body = exchange.body or await _body(exchange)
        life.read_s = time.monotonic()
        if route.action in (Action.TOKENIZE, Action.DETOKENIZE) and await self._local.tokens(
            exchange, route, body, life
        ):
            return

        if self._rules.on:
            body = await rewrite.by_rules(body, self._rules)
        # A few typed fields, the rest raw. Unknown models end here, before they cost a render.
        request = inspect(route.kind, body)
        model = request.model
        if model not in self.fleet.models:
            model = self.fleet.resolve(model)
        life.model = model if model in self.fleet.models else families.OTHER
        if life.tenant:
            body = await rewrite.for_tenant(body, request, route.path, life.tenant)
        life.inspected_s = time.monotonic()

        # Ids, off the loop where they take long. Not having them is no error: it is a reason.
        if isinstance(request, OtherBody) or not self._wants_ids:
            LOOP.mark(ROUTE)
            query = self.asking.unread(request, self._tokens.block_tokens, exchange.headers)
        else:
            LOOP.mark(TOKENIZE_LOCAL)
            known = self._tokens.known(model or "", request)
            if isinstance(known, bytes):
                known = await self._tokens.make(model or "", request, known)
            else:
                known.run_s = time.monotonic() - life.inspected_s
            LOOP.mark(ROUTE)
            life.tokens = known
            # What no replica has room for is refused before one computes anything.
            limit_tokens = self.fleet.context_tokens.get(model or "", NO_LIMIT)
            if known.prompt is not None:
                if known.prompt.tokens > limit_tokens and self._settings.tokens.context_check:
                    context.check(known.prompt, limit_tokens, text=not is_ids(request))
                if self._forwards(model, request):
                    body = await rewrite.with_ids(body, request, known.prompt)
            query = self.asking.query(
                model,
                request,
                known.prompt,
                known.reason,
                self._tokens.block_tokens,
                exchange.headers,
            )
        life.tokens_s = time.monotonic()

        # Who may, who does, and why; again after a failure, as far as the retry table allows.
        among = self._eligible(model, life.tokens_s)
        tried: set[int] = set()
        self._budget.request()
        while among.slots:
            decision = life.decision = self.router.decide(query, among, time.monotonic())
            choice = decision.choice
            tried.add(choice.slot)
            attempt = _Attempt(decision, choice, len(tried), len(among.slots) - 1)
            step = await self._attempt(exchange, body, attempt, life)
            if step is None:
                self._compare(model, life)
                return
            if step.ending is not Ending.NEXT:
                self._give_up(exchange, step, life)
                return
            among = self._eligible(model, time.monotonic()).without(tried)
        raise refusals.nobody(Nobody.DOWN)

    def _forwards(self, model: str | None, request: ChatBody | CompletionBody) -> bool:
        """Whether replicas get this request's ids in the place of its text."""
        mode = self._settings.tokens.forward_tokens
        return (
            mode == "all" or (mode == "completions" and isinstance(request, CompletionBody))
        ) and self.parity.trusts(model or "")

    def _compare(self, model: str | None, life: Life) -> None:
        """What the replica counted is held against what we did."""
        usage = life.relay.usage if life.relay is not None else None
        prompt = life.tokens.prompt if life.tokens is not None else None
        if usage is None or prompt is None or usage.prompt_tokens == prompt.tokens:
            return
        slot = life.decision.choice.slot if life.decision is not None else -1
        if slot in self.fleet:
            self.parity.differs(model or "", self.fleet[slot].state.id)

    def _eligible(self, model: str | None, now_s: float) -> Eligible:
        among = self.router.eligible(model, now_s)
        if among.nobody is not None:
            raise refusals.nobody(among.nobody)
        return among

    async def _attempt(
        self, exchange: Exchange, body: bytes, attempt: _Attempt, life: Life
    ) -> Step | None:
        """One replica: lease, connection, request, answer. Returns what follows a failure, None
        where there is nothing left to do."""
        choice = attempt.choice
        query = attempt.decision.query
        replica = self.fleet[choice.slot]
        life.replica, life.attempts = replica.state.id, attempt.number
        life.routed_s = now_s = time.monotonic()
        with self.router.attempt(choice, query, now_s) as lease:
            connection = replica.pool.idle()
            if connection is None:
                LOOP.mark(OTHER)
                try:
                    connection = await replica.pool.connect()
                except UpstreamError as error:
                    LOOP.mark(ROUTE)
                    self._unreachable(replica, error)
                    return self._after(attempt, Phase.UNSENT, error.reason)
            LOOP.mark(RELAY)
            relay = Relay(
                exchange,
                connection,
                self._lines(replica, attempt),
                may_retry=may_replace(
                    attempt.number, attempt.left, self._settings.upstream.retry_limit_count
                ),
                marked=ROUTES[life.route].ends_marked,
                on_computed=partial(_computed, lease, life.place),
            )
            life.relay = relay
            exact = attempt.decision.exact
            life.cached_tokens = choice.cached_tokens if exact else None
            head = exchange.head
            forwarded = head.forwarded
            if lease.rank >= 0 and exchange.header(b"x-data-parallel-rank") is None:
                forwarded = b"%bx-data-parallel-rank: %d\r\n" % (forwarded, lease.rank)
            request = request_head(
                head.method,
                head.target,
                replica.pool.lines,
                forwarded if life.trace is None else life.trace.forwarded(forwarded),
                exchange.request_id,
                len(body),
            )
            try:
                connection.send(head.method, [request, body], relay)
                life.sent_s = time.monotonic()
                if exact and self._on_routed is not None:
                    self._on_routed(choice.slot, query.blocks)
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
                self._failed(replica, relay.happened())
            elif self.router.health.troubled:
                self.router.health.served(choice.slot)
            return None
        happened = relay.happened()
        if happened == "empty":
            self.router.doubt(choice.slot, time.monotonic())
        self._failed(replica, happened)
        return self._after(attempt, relay.phase(), happened)

    def _failed(self, replica: Replica, happened: str) -> None:
        """A replica failed a request, in whatever way."""
        self._recorder.failed(replica.state.id, happened)
        if self.router.health.failed(replica.state.slot, time.monotonic()):
            self._recorder.ejection(replica.state.id)
            log.warning("replica %s keeps failing; it is left out for a while", replica.state.id)

    def _after(self, attempt: _Attempt, phase: Phase, happened: str) -> Step:
        """What the retry table says to a failed attempt."""
        upstream = self._settings.upstream
        step = next_step(
            phase,
            happened,
            attempts=attempt.number,
            candidates_left=attempt.left,
            retry_limit_count=upstream.retry_limit_count,
            retry_unanswered=upstream.retry_unanswered,
        )
        if step.ending is not Ending.NEXT:
            return step
        if self._budget.spend():
            self._recorder.retried(happened)
            return step
        self._recorder.retry_denied()
        return next_step(
            phase, happened, attempts=attempt.number, candidates_left=0, retry_limit_count=0
        )

    def _give_up(self, exchange: Exchange, step: Step, life: Life) -> None:
        """No further attempt: what the client gets."""
        life.outcome = "truncated" if step.ending is Ending.BREAK else "upstream_error"
        if step.ending is Ending.PASS and life.relay is not None:
            # The replica's own answer, which was held back while another might have done better.
            life.relay.release(b"x-should-retry: false\r\n" if step.should_retry is False else b"")
        elif step.ending is Ending.ERROR:
            exchange.fail(refusals.upstream(step))

    def _lines(self, replica: Replica, attempt: _Attempt) -> bytes:
        """The gateway's own headers of an answer."""
        decision = attempt.decision
        key = (replica.label, decision.policy, decision.reason)
        lines = self._route_lines.get(key)
        if lines is None:
            lines = self._route_lines[key] = (
                b"x-tokenlane-replica: %b\r\nx-tokenlane-route: %b %b\r\n"
                % (replica.label, decision.policy.encode(), decision.reason.encode())
            )
        if decision.exact:
            return b"%bx-tokenlane-cached-tokens: %d\r\n" % (lines, attempt.choice.cached_tokens)
        return lines

    def _unreachable(self, replica: Replica, error: UpstreamError) -> None:
        slot = replica.state.slot
        self._failed(replica, error.reason)
        self.router.unreachable(slot, time.monotonic(), refused=error.reason == "refused")
        if self._on_suspect is not None:
            self._on_suspect(slot)


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
