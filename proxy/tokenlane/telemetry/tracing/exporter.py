"""Tracing: finished requests go into a queue, and a thread makes spans of them and exports them.

Invariants:
- The loop draws ids and queues; it never waits for a collector. When off, it costs one check.
- A slow or absent collector loses traces, which are counted, and nothing else.
- A client's decision to record or not is kept; of the traces that begin here a share is recorded.
"""

import logging
from importlib.util import find_spec
from random import random
from typing import TYPE_CHECKING

from tokenlane.config.settings import TracingSettings
from tokenlane.errors import ConfigError
from tokenlane.runtime.ports import split_url
from tokenlane.telemetry.log.lines import ENTRY_BYTES, Entry
from tokenlane.telemetry.queued_writer import QueuedWriter
from tokenlane.telemetry.tracing.trace_context import TraceContext, parse

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PERIOD_S = 1.0
EXPORT_DEADLINE_S = 5.0
_BATCH_REQUESTS = 64
_CONTEXT_BYTES = 200

log = logging.getLogger(__name__)


_NEEDED = "tracing.endpoint: needs OpenTelemetry: pip install 'tokenlane[otel]'"
_NO_URL = "tracing.endpoint: must look like http://HOST:4318"


def check_extra() -> None:
    """Raise ConfigError where the extra is not installed; nothing of it is loaded."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ImportError:
        found = None
    if found is None:
        raise ConfigError(_NEEDED)


def check_endpoint(url: str) -> None:
    """Raise ConfigError where no collector can be at this URL, or where it holds a user name or a
    password, which the message does not repeat: settings are printed and shown."""
    parts, port = split_url(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ConfigError(_NO_URL)
    if "@" in parts.netloc:
        raise ConfigError(
            "tracing.endpoint: must not hold a user name or password; the variable"
            " OTEL_EXPORTER_OTLP_HEADERS may hold what the collector wants to see"
        )


class Tracer(QueuedWriter[tuple[Entry, TraceContext]]):
    """A worker's traces, of finished requests. ConfigError where the extra is not installed."""

    def __init__(self, settings: TracingSettings, worker: int = 0) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - an extra

            from tokenlane.telemetry.tracing import spans  # noqa: PLC0415 - needs the extra
        except ImportError:
            raise ConfigError(_NEEDED) from None
        entry_bytes = ENTRY_BYTES + _CONTEXT_BYTES
        super().__init__("traces", PERIOD_S, settings.queue_limit_count, entry_bytes)
        # The library logs every failed batch; this module logs the failure once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        url = settings.endpoint.rstrip("/") + "/v1/traces"
        self._exporter = OTLPSpanExporter(url, timeout=EXPORT_DEADLINE_S)
        self._success = SpanExportResult.SUCCESS
        self._spans = spans.spans
        self._resource = spans.resource(settings.service_name, worker)
        self._endpoint = settings.endpoint
        self._sample_ratio = settings.sample_ratio
        self._thread.start()

    def begin(self, traceparent: bytes | None) -> TraceContext | None:
        """Return the span of a request that begins; None where it is not recorded. From the
        loop."""
        parent = parse(traceparent) if traceparent is not None else None
        if parent is not None:
            return TraceContext(parent) if parent.sampled else None
        return TraceContext(None) if random() < self._sample_ratio else None

    def close(self) -> None:
        """Export the queued traces, if the collector accepts them soon."""
        super().close()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library does not type it

    def _write_all(self, offset_s: float) -> None:
        while self._queue:
            self._export(offset_s)

    def _export(self, offset_s: float) -> None:
        count = min(len(self._queue), _BATCH_REQUESTS)
        batch: list[ReadableSpan] = []
        for _ in range(count):
            entry, trace = self._queue.popleft()
            batch.extend(self._spans(entry, trace, self._resource, offset_s))
        try:
            done = self._exporter.export(batch) is self._success
        except Exception:
            log.exception("traces cannot be exported")
            done = False
        if done:
            self._written += count
            return
        if not self._failed:
            log.warning("traces do not reach %s; the metrics count lost ones", self._endpoint)
        self._failed += count
