"""Counts each request at its end, and failures on the way.

Invariants:
- A request is recorded exactly once, whatever ended it; metrics are touched nowhere else on the
  request's path.
- Children of metric families are bound once per label set; labels come from closed sets.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from random import random
from typing import Final

from tokenlane.config.settings import LogSettings, Price
from tokenlane.gateway.forwarding import Form
from tokenlane.gateway.log_entries import entry_of
from tokenlane.gateway.request_record import RequestRecord
from tokenlane.gateway.route_samples import sample_of
from tokenlane.prompt import Rung
from tokenlane.relay.response import Relay
from tokenlane.relay.usage import cached_tokens_of
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.departures import Labels
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.routing_sample import RoutingSample
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens.service import Outcome

# Route, status, outcome, model, replica, the policy and its reason (both empty where nothing was
# decided), and what the replica got.
_Key = tuple[str, int, str, str, str | None, str, str, Form | None]
# Of the kinds of requests, which come from closed sets, those whose children are at hand: 3 MB.
_ALIKE_LIMIT: Final = 8192
# Found once, as in tokenlane.protocols.routes.
_BAIL: Final = Rung.BAIL

# A 4xx among these is the client's error, whether the gateway or the replica answered it.
_ANSWERED: Final = frozenset({"ok", "gateway_error"})


class _ModelMetrics:
    """The children of one model."""

    def __init__(self, segment: MetricsSegment, model: str, price: Price | None) -> None:
        self.price = price
        self.cost = segment.counter(families.COST, model) if price is not None else None
        self.tokenize = {
            rung: segment.histogram(families.TOKENIZE, rung.value, model) for rung in Rung
        }


class _ReplicaMetrics:
    """The children of one model at one replica."""

    def __init__(self, segment: MetricsSegment, model: str, replica: str) -> None:
        self.requests = segment.counter(families.REPLICA_REQUESTS, model, replica)
        self.answers = segment.counter(families.REPLICA_ANSWERS, model, replica)
        self.ttft = segment.histogram(families.TTFT, model, replica)
        self.tpot = segment.histogram(families.TPOT, model, replica)
        self.prompt_tokens = segment.counter(families.PROMPT_TOKENS, model, replica)
        self.output_tokens = segment.counter(families.OUTPUT_TOKENS, model, replica)
        self.predicted = segment.counter(families.PREDICTED_CACHED, model, replica)
        self.actual = segment.counter(families.ACTUAL_CACHED, model, replica)


class _Alike:
    """The children of requests that are alike in all that labels them."""

    def __init__(
        self,
        segment: MetricsSegment,
        key: _Key,
        model: _ModelMetrics,
        replica: _ReplicaMetrics | None,
    ) -> None:
        route, status, outcome, name, _, policy, reason, form = key
        self.model = model
        self.replica = replica
        self.requests = segment.counter(families.REQUESTS, route, str(status), outcome, name)
        self.duration = segment.histogram(families.DURATION, route)
        self.routed = segment.counter(families.ROUTED, policy, reason) if policy else None
        self.form = segment.counter(families.FORWARDED, *form) if form is not None else None


class Recorder:
    """Writes records into a worker's metrics segment, and some to its access log. prices: by model
    name."""

    def __init__(
        self,
        segment: MetricsSegment,
        prices: Mapping[str, Price] | None = None,
        access: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        known: dict[str, Price] = {}
        self._prices = known
        self.tracer = tracer
        self._access: AccessLog | None = None
        self._slow_s = self._sample_ratio = 0.0
        self._segment = segment
        self._stages = [segment.histogram(families.STAGE, stage) for stage in families.STAGES]
        self._queue = {
            rung: segment.histogram(families.TOKENIZE_QUEUE, rung.value) for rung in Rung
        }
        self._sizes = segment.histogram(families.PROMPT_SIZE)
        self._samples: list[RoutingSample] = []
        self._samples_wanted = 0
        self._alike: dict[_Key, _Alike] = {}
        # These sets are closed and small; the bound limits a mistake.
        self._replica = lru_cache(2048)(partial(_ReplicaMetrics, segment))
        self._mismatches = lru_cache(1024)(partial(segment.counter, families.MISMATCHES))
        self._tenant = lru_cache(1024)(partial(segment.counter, families.TENANT_REQUESTS))
        self._tenant_tokens = lru_cache(1024)(partial(segment.counter, families.TENANT_TOKENS))
        self._model = lru_cache(256)(lambda model: _ModelMetrics(segment, model, known.get(model)))
        self.configure(prices or {}, access, access.settings if access is not None else None)

    def configure(
        self,
        prices: Mapping[str, Price],
        access: AccessLog | None,
        log: LogSettings | None,
    ) -> None:
        """Replace the settings from the next request that ends. log: which requests to log, where
        there is a log."""
        self._access = access
        self._slow_s = log.slow_s if log is not None else 0.0
        self._sample_ratio = log.sample_ratio if log is not None else 0.0
        if prices != self._prices:
            self._prices.clear()
            self._prices.update(prices)
            self._model.cache_clear()
            self._alike.clear()

    def record(self, record: RequestRecord, status: int) -> None:
        """Record a request that has ended; status: the client's (499: it disconnected before)."""
        if 400 <= status < 500 and record.outcome in _ANSWERED:
            record.outcome = "client_error"
        alike = self._children(record, status)
        alike.requests.inc()
        alike.duration.observe(record.ended_s - record.started_s)
        for stage, seconds in enumerate(record.stages()):
            self._stages[stage].observe(seconds)
        if record.tenant:
            self._tenant(record.tenant, record.outcome).inc()
        plan = record.plan
        tokens = plan.tokens if plan is not None else None
        if tokens is not None:
            self._tokens(tokens, alike.model)
            if record.tenant and tokens.prompt is not None:
                self._tenant_tokens(record.tenant, "prompt").inc(tokens.prompt.tokens)
        if plan is not None and plan.alias is not None:
            self._segment.counter(families.NAMED, plan.alias, plan.request.model or "").inc()
        if record.decision is not None and alike.routed is not None:
            alike.routed.inc()
            if self._samples_wanted:
                self._samples_wanted -= 1
                self._samples.append(sample_of(record, record.decision, status))
        if alike.form is not None:
            alike.form.inc()
        if alike.replica is not None:
            self._replica_asked(record, alike.model, alike.replica)
        if self._access is not None:
            self._log(record, status, self._access)
        if record.trace is not None and self.tracer is not None:
            self.tracer.offer((entry_of(record, status, "traced"), record.trace))

    def _children(self, record: RequestRecord, status: int) -> _Alike:
        plan, decision, replica = record.plan, record.decision, record.replica
        policy, reason = (decision.policy, decision.reason) if decision is not None else ("", "")
        form = plan.form if plan is not None and replica is not None else None
        key = (record.route, status, record.outcome, record.model, replica, policy, reason, form)
        alike = self._alike.get(key)
        if alike is None:
            if len(self._alike) >= _ALIKE_LIMIT:
                self._alike.clear()
            there = self._replica(record.model, replica) if replica is not None else None
            model = self._model(record.model)
            alike = self._alike[key] = _Alike(self._segment, key, model, there)
        return alike

    def take_samples(self, wanted: int) -> list[RoutingSample]:
        """Return the samples since the last call; the next `wanted` routed requests give more."""
        taken, self._samples = self._samples, []
        self._samples_wanted = wanted
        return taken

    def forget(self, gone: Labels) -> None:
        """Release the labels of replicas and models that have been gone for long."""
        self._alike.clear()
        for bound in (self._replica, self._model, self._mismatches):
            bound.cache_clear()
        self._segment.release(gone)

    def failed(self, model: str, replica: str, reason: str) -> None:
        """Count a failed attempt at a replica."""
        self._segment.counter(families.UPSTREAM_FAILURES, model, replica, reason).inc()

    def mismatch(self, model: str, replica: str) -> None:
        """Count a replica that counted other prompt tokens than the gateway."""
        self._mismatches(model, replica).inc()

    def checked(self, model: str, replica: str, result: str) -> None:
        """Count another question to a replica that had proven its ids."""
        self._segment.counter(families.ID_CHECKS, model, replica, result).inc()

    def retried(self, model: str, replica: str, reason: str) -> None:
        """Count a retry at another replica than this one."""
        self._segment.counter(families.RETRIES, reason).inc()
        self._replica(model, replica).requests.inc()

    def retry_denied(self) -> None:
        """Count a retry that the budget denied."""
        self._segment.counter(families.RETRIES_DENIED).inc()

    def shed(self, tenant: str, reason: str) -> None:
        """Count a request refused for overload."""
        self._segment.counter(families.SHED, tenant or families.OTHER, reason).inc()

    def refused_clients(self, count: int) -> None:
        """Count clients refused before anything but their request's head was known."""
        self._segment.counter(families.SHED, families.OTHER, "accept-queue").inc(count)
        other = families.OTHER
        self._segment.counter(families.REQUESTS, other, "503", "gateway_error", other).inc(count)

    def admitted(self, priority: str, waited_s: float) -> None:
        """Count an admitted request."""
        self._segment.histogram(families.ADMISSION_WAIT, priority).observe(waited_s)

    def shadowed(self, model: str, outcome: str, duration_s: float) -> None:
        """Count a shadow request that has ended or was not made."""
        self._segment.counter(families.SHADOWS, model, outcome).inc()
        if outcome == "ok":
            self._segment.histogram(families.SHADOW_DURATION, model).observe(duration_s)

    def unauthorized(self, reason: str) -> None:
        """Count a request without a valid key."""
        self._segment.counter(families.UNAUTHORIZED, reason).inc()

    def ejection(self, replica: str) -> None:
        """Count an ejection of a replica for its failures."""
        self._segment.counter(families.EJECTIONS, replica).inc()

    def _log(self, record: RequestRecord, status: int, access: AccessLog) -> None:
        """Log requests that failed or were slow, and a sample of the others."""
        relay = record.relay
        streamed = relay is not None and relay.first_token_s > 0.0
        first_s = relay.first_token_s if relay is not None and streamed else record.ended_s
        if status >= 400 or record.outcome != "ok":
            why = "failed"
        elif first_s - record.started_s >= self._slow_s:
            why = "slow"
        elif self._sample_ratio > 0.0 and random() < self._sample_ratio:
            why = "sampled"
        else:
            return
        access.offer(entry_of(record, status, why, access.settings.prefix_block_tokens))

    def _tokens(self, tokens: Outcome, model: _ModelMetrics) -> None:
        rung = tokens.rung
        if rung is _BAIL:
            self._segment.counter(families.BAILS, tokens.reason).inc()
        model.tokenize[rung].observe(tokens.run_s)
        self._queue[rung].observe(tokens.queue_s)
        if tokens.prompt is not None:
            self._sizes.observe(tokens.prompt.tokens)

    def _replica_asked(
        self, record: RequestRecord, model: _ModelMetrics, there: _ReplicaMetrics
    ) -> None:
        there.requests.inc()
        if record.outcome == "ok":
            there.answers.inc()
        relay, tokens = record.relay, record.tokens
        prompt = tokens.prompt if tokens is not None else None
        usage = relay.usage if relay is not None else None
        if prompt is not None:
            there.prompt_tokens.inc(prompt.tokens)
        elif usage is not None:
            there.prompt_tokens.inc(usage.prompt_tokens)
        if relay is None:
            return
        output_tokens = usage.completion_tokens if usage is not None else None
        if output_tokens is None:
            output_tokens = relay.token_events
        if relay.first_token_s:
            there.ttft.observe(relay.first_token_s - record.started_s)
            if relay.token_events > 1:
                tokens_after = max(output_tokens, relay.token_events) - 1
                there.tpot.observe((relay.last_token_s - relay.first_token_s) / tokens_after)
        there.output_tokens.inc(output_tokens)
        if record.tenant:
            self._tenant_tokens(record.tenant, "output").inc(output_tokens)
        if model.price is not None and relay.head is not None and relay.head.status < 400:
            _charge(model, record, relay, output_tokens)
        if usage is None or prompt is None:
            return
        cached_tokens = cached_tokens_of(usage)
        if cached_tokens is not None and record.cached_tokens is not None:
            there.predicted.inc(record.cached_tokens)
            there.actual.inc(cached_tokens)


def _charge(model: _ModelMetrics, record: RequestRecord, relay: Relay, output_tokens: int) -> None:
    """Add an answer's estimated cost, by the replica's counts where it reports any, else by the
    gateway's."""
    price, usage, tokens = model.price, relay.usage, record.tokens
    assert price is not None
    assert model.cost is not None
    prompt_tokens, cached_tokens = 0, record.cached_tokens or 0
    if usage is not None:
        prompt_tokens = usage.prompt_tokens
        if (said_tokens := cached_tokens_of(usage)) is not None:
            cached_tokens = said_tokens
    elif tokens is not None and tokens.prompt is not None:
        prompt_tokens = tokens.prompt.tokens
    cached_tokens = min(cached_tokens, prompt_tokens)
    record.cost = (
        (prompt_tokens - cached_tokens) * price.input_per_million
        + cached_tokens * price.cached_input_per_million
        + output_tokens * price.output_per_million
    ) / 1e6
    model.cost.inc(record.cost)
