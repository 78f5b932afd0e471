"""An attempt at a replica, from its lease to its end, and what its failure means to the replica
and to the request.

Invariants:
- In-flight counts belong to the lease, connections to the pool: cancelling an attempt (the client
  left) gives back both and aborts the replica's work within the same turn of the loop.
- Every failure is counted, and told to the replica's health, once.
- Another attempt is made only where the retry table says so and the budget has one left.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from tokenlane.admission.queue import Permit
from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import UpstreamError
from tokenlane.gateway.fleet import Fleet, Replica
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.http.exchange import Exchange
from tokenlane.http.headers import request_head
from tokenlane.http.upstream import UpstreamConnection
from tokenlane.parts import RawBody, pieces
from tokenlane.protocols.routes import ROUTES, Action
from tokenlane.relay.relay_states import COMPLETE
from tokenlane.relay.response import Relay
from tokenlane.routing.decision import Choice, Decision
from tokenlane.routing.lease import Lease
from tokenlane.routing.retry import Ending, Phase, RetryBudget, Step, may_replace, next_step
from tokenlane.routing.router import Router
from tokenlane.runtime.clock import monotonic
from tokenlane.runtime.cohorts import step_aside
from tokenlane.telemetry.stalls.stages import AWAITING, LOOP, RELAY, ROUTE
from tokenlane.telemetry.tracing.trace_context import TraceContext

log = logging.getLogger(__name__)

_LINES_KEPT: Final = 4096


class Attempt:
    """One attempt of a request. number: 1 for the first. left: candidates not tried yet. kept: the
    request asks for a response that only one replica stores. stored: its own may be one."""

    __slots__ = ("choice", "decision", "kept", "left", "number", "stored")

    def __init__(
        self, decision: Decision, number: int, left: int, *, kept: bool = False, stored: bool = True
    ) -> None:
        self.kept = kept
        self.stored = stored
        self.decision = decision
        self.choice: Choice = decision.choice
        self.number = number
        self.left = left


def head_for(
    replica: Replica, exchange: Exchange, lease: Lease, trace: TraceContext | None, body_bytes: int
) -> bytes:
    """Return the request's head for this replica."""
    head = exchange.head
    forwarded = head.forwarded
    if lease.rank >= 0 and exchange.header(b"x-data-parallel-rank") is None:
        forwarded = b"%bx-data-parallel-rank: %d\r\n" % (forwarded, lease.rank)
    return request_head(
        head.method,
        head.target,
        replica.pool.lines,
        forwarded if trace is None else trace.forwarded(forwarded),
        exchange.request_id,
        body_bytes,
    )


class AnswerHeaders:
    """The gateway's own header lines of an answer: which replica, why, whether it got ids, and how
    many tokens it had cached. Made once for each replica, reason and form; the count is added only
    where ids are known."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str, str, str], bytes] = {}

    def of(self, replica: bytes, decision: Decision, sent: str) -> bytes:
        """Return the lines, each with its CRLF. replica: its id as a header value. sent: ids or
        text, empty where the prompt was not read."""
        key = (replica, decision.policy, decision.reason, sent)
        lines = self._known.get(key)
        if lines is None:
            if len(self._known) >= _LINES_KEPT:  # replicas come and go
                self._known.clear()
            lines = self._known[key] = (
                b"x-tokenlane-replica: %b\r\nx-tokenlane-route: %b %b\r\n"
                % (replica, decision.policy.encode(), decision.reason.encode())
            ) + (b"x-tokenlane-forwarded: %b\r\n" % sent.encode() if sent else b"")
        if decision.exact:
            return b"%bx-tokenlane-cached-tokens: %d\r\n" % (lines, decision.choice.cached_tokens)
        return lines


class Attempts:
    """A worker's attempts at its replicas.

    budget: of retries. on_routed: told (slot, blocks, tenant) of each prefix sent to a replica.
    on_suspect: told of a slot whose replica could not be reached. on_made: told (slot, tenant,
    name) of each response that a replica may keep. on_refused: told of a slot where nobody listens.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        fleet: Fleet,
        router: Router,
        recorder: Recorder,
        on_routed: Callable[[int, bytes, str], object] | None,
        on_suspect: Callable[[int], object] | None,
        on_made: Callable[[int, str, str], object],
        on_refused: Callable[[int], object],
    ) -> None:
        self._on_refused = on_refused
        self._on_made = on_made
        self._settings = settings
        self._fleet = fleet
        self._router = router
        self._recorder = recorder
        self._on_routed = on_routed
        self._on_suspect = on_suspect
        self._answer_headers = AnswerHeaders()
        self.budget = RetryBudget(settings.retry_budget_ratio, settings.retry_budget_burst_count)

    def configure(self, settings: UpstreamSettings) -> None:
        """Replace the settings for failures from now on."""
        if settings != self._settings:
            self._settings = settings
            self.budget = RetryBudget(
                settings.retry_budget_ratio, settings.retry_budget_burst_count
            )

    async def run(
        self, exchange: Exchange, body: RawBody, attempt: Attempt, record: RequestRecord
    ) -> Step | None:
        """Send the request to the chosen replica and relay its answer. Return what follows a
        failure, None where there is nothing left to do."""
        choice, query = attempt.choice, attempt.decision.query
        replica = self._fleet[choice.slot]
        record.replica, record.attempts = replica.state.id, attempt.number
        now_s = monotonic()
        record.routed_s = record.routed_s or now_s  # a lost attempt is a replica's time, not ours
        # Nothing of the attempt before this one.
        record.sent_s, record.relay, record.cached_tokens = 0.0, None, None
        with self._router.attempt(choice, query, now_s) as lease:
            with AWAITING[ROUTE]:
                await step_aside()
            connection = replica.pool.idle()
            if connection is None:
                try:
                    with AWAITING[ROUTE]:
                        connection = await replica.pool.connect()
                except UpstreamError as error:
                    self.unreachable(replica, error, record.model)
                    return self.after(attempt, Phase.UNSENT, error.reason, record)
            LOOP.mark(RELAY)
            form = record.plan.form if record.plan is not None else None
            sent = form.sent if form is not None else ""
            lines = self._answer_headers.of(replica.label, attempt.decision, sent)
            on_computed = partial(_computed, lease, record.permit)
            relay = self._relay(exchange, connection, lines, attempt, record, on_computed)
            record.relay = relay
            exact = attempt.decision.exact
            record.cached_tokens = choice.cached_tokens if exact else None
            request = head_for(replica, exchange, lease, record.trace, len(body))
            try:
                connection.send(exchange.head.method, [request, *pieces(body)], relay)
                record.sent_s = monotonic()
                if query.inexact is None and self._on_routed is not None:
                    self._on_routed(choice.slot, query.blocks, query.tenant)
                with AWAITING[ROUTE]:
                    await relay.done
            except asyncio.CancelledError:
                connection.abort(relay)
                raise
        if relay.state != COMPLETE:
            return self._unanswered(replica, attempt, relay, record)
        if relay.failed:
            record.outcome = "upstream_error"
            self.failed(replica, relay.happened(), record.model)
        else:
            if relay.refused:
                record.outcome = "client_error"
            if self._router.health.troubled:
                self._router.health.served(choice.slot)
        return None

    def _relay(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        lines: bytes,
        attempt: Attempt,
        record: RequestRecord,
        on_computed: Callable[[float], None],
    ) -> Relay:
        """Return the relay that takes the replica's answer and passes it on."""
        route = ROUTES[record.route]
        return Relay(
            exchange,
            connection,
            lines,
            dialect=route.dialect,
            may_retry=self.may_replace(attempt),
            kept=attempt.kept,
            marked=route.ends_marked,
            told=route.action is Action.KEPT,
            on_computed=on_computed,
            on_made=partial(self._on_made, attempt.choice.slot, record.tenant)
            if route.names_answers and attempt.stored
            else None,
        )

    def _unanswered(
        self, replica: Replica, attempt: Attempt, relay: Relay, record: RequestRecord
    ) -> Step:
        """Count an attempt whose answer the client did not get whole. Return what follows."""
        happened = relay.happened()
        if happened == "empty":
            self._router.doubt(attempt.choice.slot, monotonic())
        if happened != "elsewhere":
            self.failed(replica, happened, record.model)
        return self.after(attempt, relay.phase(), happened, record)

    def failed(self, replica: Replica, happened: str, model: str) -> None:
        """Count a failed request and tell the replica's health."""
        self._recorder.failed(model, replica.state.id, happened)
        if self._router.failed(replica.state.slot, monotonic()):
            self._recorder.ejection(replica.state.id)
            log.warning("replica %s keeps failing; ejected for a while", replica.state.id)

    def unreachable(self, replica: Replica, error: UpstreamError, model: str) -> None:
        """Count a connection that could not be made."""
        slot = replica.state.slot
        self.failed(replica, error.reason, model)
        refused = error.reason == "refused"
        self._router.unreachable(slot, monotonic(), refused=refused)
        if refused:
            self._on_refused(slot)
        if self._on_suspect is not None:
            self._on_suspect(slot)

    def may_replace(self, attempt: Attempt) -> bool:
        """Return whether another replica could still replace an answer that generated nothing."""
        return may_replace(attempt.number, attempt.left, self._settings.retry_limit_count)

    def after(self, attempt: Attempt, phase: Phase, happened: str, record: RequestRecord) -> Step:
        """Return the retry table's decision after a failed attempt."""
        settings = self._settings
        step = next_step(
            phase,
            happened,
            attempts=attempt.number,
            candidates_left=attempt.left,
            retry_limit_count=settings.retry_limit_count,
            retry_unanswered=settings.retry_unanswered,
        )
        if step.ending is not Ending.NEXT:
            return step
        # A replica that does not have the response did no work that retries could multiply.
        if happened == "elsewhere" or self.budget.spend():
            assert record.replica is not None
            self._recorder.retried(record.model, record.replica, happened)
            return step
        self._recorder.retry_denied()
        return next_step(
            phase, happened, attempts=attempt.number, candidates_left=0, retry_limit_count=0
        )


def _computed(lease: Lease, permit: Permit | None, first_token_s: float) -> None:
    # Not the record: it refers to the relay, which refers to this, and a cycle is work for the
    # garbage collector.
    lease.first_byte(first_token_s)
    if permit is not None:
        permit.computed()
