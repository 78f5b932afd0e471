"""An attempt at a replica, and what its failure means to the replica and to the request.

Invariants:
- Every failure is counted, and told to the replica's health, once.
- Another attempt is made only where the retry table says so and the budget has one left.
"""

import logging
import time
from collections.abc import Callable

from tokenlane.config.settings import UpstreamSettings
from tokenlane.errors import UpstreamError
from tokenlane.gateway.fleet import Replica
from tokenlane.gateway.recorder import Recorder
from tokenlane.http.exchange import Exchange
from tokenlane.http.headers import request_head
from tokenlane.routing.decision import Choice, Decision
from tokenlane.routing.lease import Lease
from tokenlane.routing.retry import Ending, Phase, Step, may_replace, next_step
from tokenlane.routing.retry_budget import RetryBudget
from tokenlane.routing.router import Router
from tokenlane.telemetry.tracing.trace_context import TraceContext

log = logging.getLogger(__name__)


class Attempt:
    """number: 1 for the first. left: candidates not tried yet. kept: it asks for what one replica
    alone keeps."""

    __slots__ = ("choice", "decision", "kept", "left", "number")

    def __init__(self, decision: Decision, number: int, left: int, *, kept: bool = False) -> None:
        self.kept = kept
        self.decision = decision
        self.choice: Choice = decision.choice
        self.number = number
        self.left = left


def head_for(
    replica: Replica, exchange: Exchange, lease: Lease, trace: TraceContext | None, body_bytes: int
) -> bytes:
    """The request's head as this replica gets it."""
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


class Failures:
    """on_suspect: told of a slot whose replica could not be reached."""

    def __init__(
        self,
        settings: UpstreamSettings,
        router: Router,
        recorder: Recorder,
        on_suspect: Callable[[int], object] | None,
    ) -> None:
        self._settings = settings
        self._router = router
        self._recorder = recorder
        self._on_suspect = on_suspect
        self.budget = RetryBudget(settings.retry_budget_ratio, settings.retry_budget_burst_count)

    def configure(self, settings: UpstreamSettings) -> None:
        """From the next failure on."""
        if settings != self._settings:
            self._settings = settings
            self.budget = RetryBudget(
                settings.retry_budget_ratio, settings.retry_budget_burst_count
            )

    def failed(self, replica: Replica, happened: str) -> None:
        """A replica failed a request, in whatever way."""
        self._recorder.failed(replica.state.id, happened)
        if self._router.health.failed(replica.state.slot, time.monotonic()):
            self._recorder.ejection(replica.state.id)
            log.warning("replica %s keeps failing; it is left out for a while", replica.state.id)

    def unreachable(self, replica: Replica, error: UpstreamError) -> None:
        """There was no connection to be had."""
        slot = replica.state.slot
        self.failed(replica, error.reason)
        self._router.unreachable(slot, time.monotonic(), refused=error.reason == "refused")
        if self._on_suspect is not None:
            self._on_suspect(slot)

    def may_replace(self, attempt: Attempt) -> bool:
        """Whether an answer that generated nothing could still be replaced by another's."""
        return may_replace(attempt.number, attempt.left, self._settings.retry_limit_count)

    def after(self, attempt: Attempt, phase: Phase, happened: str) -> Step:
        """What the retry table says to a failed attempt."""
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
        # A replica that had nothing to do for it is no work that retries could multiply.
        if happened == "elsewhere" or self.budget.spend():
            self._recorder.retried(happened)
            return step
        self._recorder.retry_denied()
        return next_step(
            phase, happened, attempts=attempt.number, candidates_left=0, retry_limit_count=0
        )
