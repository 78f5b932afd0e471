"""A request as OpenTelemetry spans: one for its life, one below it for each stage. Needs the extra
`otel`; imported only where tracing is on.

Names of attributes are those of OpenTelemetry's conventions for HTTP and generative AI; what they
do not know stands under `tokenlane.`.
"""

from collections.abc import Iterator
from random import getrandbits

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tokenlane import __version__
from tokenlane.telemetry.log.lines import Entry
from tokenlane.telemetry.metrics.families import STAGES
from tokenlane.telemetry.tracing.trace_context import TraceContext

_SCOPE = InstrumentationScope("tokenlane", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_FAILED = frozenset({"truncated", "upstream_error"})
Attribute = str | int | float


def resource(service_name: str, worker: int) -> Resource:
    """Return the resource: the service and the worker."""
    return Resource.create(
        {
            "service.name": service_name,
            "service.version": __version__,
            "service.instance.id": f"worker-{worker}",
        }
    )


def spans(
    entry: Entry, trace: TraceContext, who: Resource, offset_s: float
) -> Iterator[ReadableSpan]:
    """Yield all spans of a request. offset_s: from time.monotonic() to Unix time."""
    started_ns = _ns(entry.ended_s - entry.duration_s + offset_s)
    own = _context(trace.trace_id, trace.span_id)
    at_ns = started_ns
    for stage, seconds in zip(STAGES, entry.stages_s, strict=False):
        began_ns, at_ns = at_ns, at_ns + _ns(seconds)
        yield ReadableSpan(
            stage,
            _context(trace.trace_id, getrandbits(64) or 1),
            own,
            who,
            start_time=began_ns,
            end_time=at_ns,
            instrumentation_scope=_SCOPE,
        )
    failed = entry.status >= 500 or entry.outcome in _FAILED
    operation = _OPERATIONS.get(entry.route)
    yield ReadableSpan(
        f"{operation} {entry.model}" if operation is not None else entry.route,
        own,
        _context(trace.trace_id, trace.parent_id, remote=True) if trace.parent_id else None,
        who,
        _attributes(entry, operation, failed),
        kind=SpanKind.SERVER,
        status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
        start_time=started_ns,
        end_time=max(at_ns, started_ns + _ns(entry.duration_s)),
        instrumentation_scope=_SCOPE,
    )


def _attributes(entry: Entry, operation: str | None, failed: bool) -> dict[str, Attribute]:
    found: dict[str, Attribute | None] = {
        "http.request.method": entry.method,
        "http.route": entry.route,
        "http.response.status_code": entry.status,
        "error.type": (str(entry.status) if entry.status >= 500 else entry.outcome)
        if failed
        else None,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm" if operation is not None else None,
        "gen_ai.request.model": entry.model if operation is not None else None,
        "gen_ai.usage.input_tokens": entry.prompt_tokens_actual or entry.prompt_tokens,
        "gen_ai.usage.output_tokens": entry.output_tokens,
        "tokenlane.outcome": entry.outcome,
        "tokenlane.error_code": entry.error_code,
        "tokenlane.request_id": entry.request_id[:128].decode("ascii", "backslashreplace"),
        "tokenlane.replica": entry.replica,
        "tokenlane.attempts": entry.attempts or None,
        "tokenlane.policy": entry.policy,
        "tokenlane.reason": entry.reason,
        "tokenlane.rung": entry.rung,
        "tokenlane.bail": entry.bail,
        "tokenlane.cached_tokens.predicted": entry.cached_tokens,
        "tokenlane.cached_tokens.actual": entry.cached_tokens_actual,
        "tokenlane.time_to_first_token_s": entry.ttft_s,
    }
    return {name: value for name, value in found.items() if value is not None}


def _context(trace_id: int, span_id: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, remote, _SAMPLED)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
