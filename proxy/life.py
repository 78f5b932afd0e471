"""What is known of one request: filled in as it goes through its stages, recorded once.

Invariants:
- A life is recorded exactly once, whatever ended it; metrics are touched nowhere else on the
  request's path.
- Children of metric families are bound once per label set; labels come from closed sets.
"""

from collections.abc import Mapping
from functools import lru_cache
from random import random

from proxy.gate import Place
from proxy.model import RoutingSample, Rung
from proxy.routing.decision import Decision
from proxy.samples import sample_of
from proxy.settings import Price
from proxy.telemetry import families
from proxy.telemetry.access import AccessLog, LineCounts
from proxy.telemetry.families import Family
from proxy.telemetry.lines import Entry
from proxy.telemetry.metrics import HistogramRow, MetricsSegment
from proxy.telemetry.stall import InHand
from proxy.telemetry.trace_context import Trace
from proxy.telemetry.traces import Tracer
from proxy.tokens.cache import CacheCounts
from proxy.tokens.service import Outcome
from proxy.wire.relay import Relay

Requests = tuple[tuple[InHand, ...], int]
_SHOWN_COUNT = 20


class Life:
    """One request. Times: time.monotonic() seconds at the end of each stage, 0.0 before.

    outcome: ok, gateway_error, client_gone, upstream_error or truncated.
    tenant: whose request it is; empty where no key was asked for, `other` where none was good.
    cached_tokens: predicted for the replica that answered; None where ids were not known.
    replica: tried last; attempts: how many were. trace: its span, where it is recorded.
    place: where places are limited.
    """

    route = families.OTHER
    model = families.OTHER
    outcome = "ok"
    tenant = ""
    request_id = b""
    replica: str | None = None
    attempts = 0
    trace: Trace | None = None
    place: Place | None = None
    tokens: Outcome | None = None
    decision: Decision | None = None
    relay: Relay | None = None
    cached_tokens: int | None = None
    read_s = 0.0
    inspected_s = 0.0
    tokens_s = 0.0
    routed_s = 0.0
    sent_s = 0.0
    ended_s = 0.0

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s

    def stages(self) -> list[float]:
        """Seconds in each of families.STAGES, as far as the request came."""
        relay = self.relay
        first_byte_s = relay.first_byte_s if relay is not None else 0.0
        ends = (
            self.read_s,
            self.inspected_s,
            self.tokens_s,
            self.routed_s,
            self.sent_s,
            first_byte_s,
            self.ended_s if first_byte_s else 0.0,
        )
        seconds = []
        began_s = self.started_s
        for end_s in ends:
            if not end_s:
                break
            seconds.append(end_s - began_s)
            began_s = end_s
        return seconds

    def stage(self) -> str:
        """The one of families.STAGES it is in."""
        return families.STAGES[min(len(self.stages()), len(families.STAGES) - 1)]


def in_hand(lives: dict[Life, bytes]) -> Requests:
    """The first few of these requests and their number, from any thread. lives: with their ids."""
    now = list(lives.items())  # in one step of the interpreter: the loop may run between any two
    return (
        tuple(
            InHand(request_id.decode("ascii"), life.route, life.stage())
            for life, request_id in now[:_SHOWN_COUNT]
        ),
        len(now),
    )


class _ModelMetrics:
    """The children of one model."""

    def __init__(self, segment: MetricsSegment, model: str, price: Price | None) -> None:
        self.price = price
        self.cost = segment.counter(families.COST, model) if price is not None else None
        self.output_tokens = segment.counter(families.OUTPUT_TOKENS, model)
        self.ttft = segment.histogram(families.TTFT, model)
        self.tpot = segment.histogram(families.TPOT, model)
        self.prompt_tokens = segment.counter(families.PROMPT_TOKENS, model)
        self.predicted = segment.counter(families.PREDICTED_CACHED, model)
        self.actual = segment.counter(families.ACTUAL_CACHED, model)
        self.tokenize = {
            rung: segment.histogram(families.TOKENIZE, rung.value, model) for rung in Rung
        }


class Recorder:
    """Writes lives into a worker's metrics segment, and hands some to its access log. worker: its
    number, as a label. prices: by model name."""

    def __init__(
        self,
        segment: MetricsSegment,
        worker: int,
        prices: Mapping[str, Price] | None = None,
        access: AccessLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        known = prices or {}
        self.tracer = tracer
        self._traces = LineCounts()
        self._access = access
        self._slow_s = access.settings.slow_s if access is not None else 0.0
        self._sample_ratio = access.settings.sample_ratio if access is not None else 0.0
        self._lines = LineCounts()
        self._segment = segment
        self._stages = HistogramRow(
            [segment.histogram(families.STAGE, stage) for stage in families.STAGES]
        )
        self._queue = {
            rung: segment.histogram(families.TOKENIZE_QUEUE, rung.value) for rung in Rung
        }
        self._sizes = segment.histogram(families.PROMPT_SIZE)
        self.stall = segment.histogram(families.LOOP_STALL, str(worker))
        self._connections = segment.gauge(families.CONNECTIONS)
        self._upstream_idle = segment.gauge(families.UPSTREAM_CONNECTIONS, "idle")
        self._upstream_busy = segment.gauge(families.UPSTREAM_CONNECTIONS, "busy")
        self._caches: dict[str, CacheCounts] = {}
        self._samples: list[RoutingSample] = []
        self._samples_wanted = 0
        for lost in (families.ACCESS_DROPPED, families.TRACES_DROPPED):
            for reason in ("full", "failed"):
                segment.counter(lost, reason)  # shown from the start: none is a number too
        # The sets behind these are closed and small; the bound keeps a mistake from leaking.
        self._requests = lru_cache(1024)(
            lambda route, status, outcome: segment.counter(
                families.REQUESTS, route, str(status), outcome
            )
        )
        self._duration = lru_cache(64)(lambda route: segment.histogram(families.DURATION, route))
        self._routed = lru_cache(256)(
            lambda policy, reason: segment.counter(families.ROUTED, policy, reason)
        )
        self._mismatches = lru_cache(1024)(
            lambda model, replica: segment.counter(families.MISMATCHES, model, replica)
        )
        self._tenant = lru_cache(1024)(
            lambda tenant, outcome: segment.counter(families.TENANT_REQUESTS, tenant, outcome)
        )
        self._tenant_tokens = lru_cache(1024)(
            lambda tenant, kind: segment.counter(families.TENANT_TOKENS, tenant, kind)
        )
        self._model = lru_cache(256)(lambda model: _ModelMetrics(segment, model, known.get(model)))

    def record(self, life: Life, status: int) -> None:
        """The request is over; status: what the client got (499: it left before)."""
        self._requests(life.route, status, life.outcome).inc()
        self._duration(life.route).observe(life.ended_s - life.started_s)
        self._stages.observe(life.stages())
        model = self._model(life.model)
        if life.tenant:
            self._tenant(life.tenant, life.outcome).inc()
        if life.tokens is not None:
            self._tokens(life.tokens, model)
            if life.tenant and life.tokens.prompt is not None:
                self._tenant_tokens(life.tenant, "prompt").inc(life.tokens.prompt.tokens)
        if life.decision is not None:
            self._routed(life.decision.policy, life.decision.reason).inc()
            if self._samples_wanted:
                self._samples_wanted -= 1
                self._samples.append(sample_of(life, life.decision, status))
        if life.relay is not None:
            self._relay(life, life.relay, model)
        if self._access is not None:
            self._log(life, status, self._access)
        if life.trace is not None and self.tracer is not None:
            self.tracer.offer(_entry(life, status, "traced"), life.trace)

    def take_samples(self, wanted: int) -> list[RoutingSample]:
        """Samples taken since the last call; the next `wanted` routed requests give more."""
        taken, self._samples = self._samples, []
        self._samples_wanted = wanted
        return taken

    def failed(self, replica: str, reason: str) -> None:
        """An attempt failed at a replica."""
        self._segment.counter(families.UPSTREAM_FAILURES, replica, reason).inc()

    def mismatch(self, model: str, replica: str) -> None:
        """A replica counted other prompt tokens than we did."""
        self._mismatches(model, replica).inc()

    def retried(self, reason: str) -> None:
        """A request went on to another replica."""
        self._segment.counter(families.RETRIES, reason).inc()

    def retry_denied(self) -> None:
        """A request could have gone on to another replica, but the budget was used up."""
        self._segment.counter(families.RETRIES_DENIED).inc()

    def shed(self, tenant: str, reason: str) -> None:
        """A request was turned away for overload."""
        self._segment.counter(families.SHED, tenant or families.OTHER, reason).inc()

    def admitted(self, priority: str, waited_s: float) -> None:
        """A request has its place."""
        self._segment.histogram(families.ADMISSION_WAIT, priority).observe(waited_s)

    def places(self, taken: int, waiting: int) -> None:
        """Requests with a place and those that wait for one, sampled now and then."""
        self._segment.gauge(families.ADMITTED).set(taken)
        self._segment.gauge(families.WAITING).set(waiting)

    def unauthorized(self, reason: str) -> None:
        """A request without a good key."""
        self._segment.counter(families.UNAUTHORIZED, reason).inc()

    def ejection(self, replica: str) -> None:
        """A replica is left out from now on, for its failures."""
        self._segment.counter(families.EJECTIONS, replica).inc()

    def ejected(self, replica: str, out: bool) -> None:
        """Whether a replica is left out now, sampled now and then."""
        self._segment.counter(families.EJECTIONS, replica)  # from 0 on, for rates
        self._segment.gauge(families.EJECTED, replica).set(float(out))

    def gauges(
        self,
        *,
        connections: int,
        upstream_open: int,
        upstream_idle: int,
    ) -> None:
        """What is sampled now and then rather than counted."""
        self._connections.set(connections)
        self._upstream_idle.set(upstream_idle)
        self._upstream_busy.set(upstream_open - upstream_idle)

    def index(self, sizes_bytes: dict[str, int]) -> None:
        """Memory of the prefix index by part, sampled now and then."""
        for part, size_bytes in sizes_bytes.items():
            self._segment.gauge(families.INDEX_BYTES, part).set(size_bytes)

    def cache(self, cache: str, now: CacheCounts) -> None:
        """A kind of cache, sampled now and then: its counts only grow."""
        segment = self._segment
        before = self._caches.get(cache, CacheCounts())
        self._caches[cache] = now
        segment.gauge(families.CACHE_ENTRIES, cache).set(now.entries)
        segment.gauge(families.CACHE_BYTES, cache).set(now.size_bytes)
        segment.counter(families.CACHE_HITS, cache).inc(now.hits - before.hits)
        segment.counter(families.CACHE_MISSES, cache).inc(now.misses - before.misses)
        segment.counter(families.CACHE_EVICTIONS, cache).inc(now.evictions - before.evictions)

    def logged(self) -> None:
        """Lines of the access log and traces, sampled now and then."""
        if self._access is not None:
            before, self._lines = self._lines, self._access.counts()
            self._grown(families.ACCESS_LINES, families.ACCESS_DROPPED, before, self._lines)
        if self.tracer is not None:
            before, self._traces = self._traces, self.tracer.counts()
            self._grown(families.TRACES_EXPORTED, families.TRACES_DROPPED, before, self._traces)

    def _grown(self, done: Family, lost: Family, before: LineCounts, now: LineCounts) -> None:
        segment = self._segment
        segment.counter(done).inc(now.written - before.written)
        segment.counter(lost, "full").inc(now.full - before.full)
        segment.counter(lost, "failed").inc(now.failed - before.failed)

    def _log(self, life: Life, status: int, access: AccessLog) -> None:
        """What failed and what was slow is written down; of the rest, some."""
        relay = life.relay
        streamed = relay is not None and relay.first_token_s > 0.0
        first_s = relay.first_token_s if relay is not None and streamed else life.ended_s
        if status >= 400 or life.outcome != "ok":
            why = "failed"
        elif first_s - life.started_s >= self._slow_s:
            why = "slow"
        elif self._sample_ratio > 0.0 and random() < self._sample_ratio:
            why = "sampled"
        else:
            return
        access.offer(_entry(life, status, why))

    def _tokens(self, tokens: Outcome, model: _ModelMetrics) -> None:
        rung = tokens.rung
        if rung is Rung.BAIL:
            self._segment.counter(families.BAILS, tokens.reason).inc()
        model.tokenize[rung].observe(tokens.run_s)
        self._queue[rung].observe(tokens.queue_s)
        if tokens.prompt is not None:
            size_tokens = tokens.prompt.tokens
            model.prompt_tokens.inc(size_tokens)
            self._sizes.observe(size_tokens)

    def _relay(self, life: Life, relay: Relay, model: _ModelMetrics) -> None:
        if relay.first_token_s:
            model.ttft.observe(relay.first_token_s - life.started_s)
            if relay.token_events > 1:
                between_s = (relay.last_token_s - relay.first_token_s) / (relay.token_events - 1)
                model.tpot.observe(between_s)
        usage = relay.usage
        output_tokens = usage.completion_tokens if usage is not None else None
        if output_tokens is None:
            output_tokens = relay.token_events
        model.output_tokens.inc(output_tokens)
        if life.tenant:
            self._tenant_tokens(life.tenant, "output").inc(output_tokens)
        if model.price is not None:
            _charge(model, life, relay, output_tokens)
        prompt = life.tokens.prompt if life.tokens is not None else None
        if usage is None or prompt is None:
            return
        if usage.cached_tokens is not None and life.cached_tokens is not None:
            model.predicted.inc(life.cached_tokens)
            model.actual.inc(usage.cached_tokens)


def _entry(life: Life, status: int, why: str) -> Entry:
    """A life in the words of the access log."""
    relay, tokens, decision = life.relay, life.tokens, life.decision
    usage = relay.usage if relay is not None else None
    prompt = tokens.prompt if tokens is not None else None
    first_token_s = relay.first_token_s if relay is not None else 0.0
    output_tokens = usage.completion_tokens if usage is not None else None
    if output_tokens is None and relay is not None:
        output_tokens = relay.token_events
    return Entry(
        life.ended_s,
        why,
        life.request_id,
        life.route,
        life.model,
        status,
        life.outcome,
        life.ended_s - life.started_s,
        life.stages(),
        ttft_s=first_token_s - life.started_s if first_token_s else None,
        replica=life.replica,
        attempts=life.attempts,
        policy=decision.policy if decision is not None else None,
        reason=decision.reason.value if decision is not None else None,
        rung=tokens.rung.value if tokens is not None else None,
        bail=tokens.reason or None if tokens is not None else None,
        prompt_tokens=prompt.tokens if prompt is not None else None,
        prompt_tokens_actual=usage.prompt_tokens if usage is not None else None,
        cached_tokens=life.cached_tokens,
        cached_tokens_actual=usage.cached_tokens if usage is not None else None,
        output_tokens=output_tokens,
        tenant=life.tenant,
    )


def _charge(model: _ModelMetrics, life: Life, relay: Relay, output_tokens: int) -> None:
    """Adds an answer's estimated cost: the replica's own counts where it gave any, else ours."""
    price, usage, tokens = model.price, relay.usage, life.tokens
    assert price is not None
    assert model.cost is not None
    prompt_tokens, cached_tokens = 0, life.cached_tokens or 0
    if usage is not None:
        prompt_tokens = usage.prompt_tokens
        if usage.cached_tokens is not None:
            cached_tokens = usage.cached_tokens
    elif tokens is not None and tokens.prompt is not None:
        prompt_tokens = tokens.prompt.tokens
    cached_tokens = min(cached_tokens, prompt_tokens)
    model.cost.inc(
        (
            (prompt_tokens - cached_tokens) * price.input_per_million
            + cached_tokens * price.cached_input_per_million
            + output_tokens * price.output_per_million
        )
        / 1e6
    )
