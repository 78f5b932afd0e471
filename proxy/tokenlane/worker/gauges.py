"""Gauges that are sampled now and then rather than counted as things happen: sizes, and counts kept
elsewhere.

Invariants:
- A sample costs the same however busy the worker is, and is never taken on a request's path.
- Counts kept elsewhere only grow, and the counters follow them.
"""

import socket
import time
from collections.abc import Callable
from typing import Any

from tokenlane.gateway.request import Gateway
from tokenlane.http.server import HttpServer
from tokenlane.routing.candidates import SEEN_BY_WORKERS
from tokenlane.runtime import accept_queue
from tokenlane.runtime.cgroup import MemoryWatch
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.departures import KEPT_S, Departures, Labels, labels_of
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.queued_writer import LineCounts, QueuedWriter
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.worker.memory_account import memory_parts


class LineGrowth:
    """Counts of what a writer off the loop (access log, traces) wrote and lost. Both exist from the
    start, since 0 is a value too."""

    def __init__(
        self, segment: MetricsSegment, writer: QueuedWriter[Any] | None, done: Family, lost: Family
    ) -> None:
        self.writer = writer
        # The writer before this one, which may still write, and the counts of those before it.
        self._last: QueuedWriter[Any] | None = None
        self._before = [0, 0, 0]
        self._counters = (
            segment.counter(done), segment.counter(lost, "full"), segment.counter(lost, "failed"),
        )  # fmt: skip

    def follow(self, writer: QueuedWriter[Any] | None) -> None:
        """Follow another writer, whose counts begin at zero, beside the one that ends."""
        self._before = [*map(sum, zip(self._before, _counts(self._last)))]
        self._last, self.writer = self.writer, writer

    def write(self) -> None:
        """Write the current counts."""
        for counter, total in zip(self._counters, self._totals()):
            counter.reach(total)

    def _totals(self) -> list[int]:
        return [*map(sum, zip(self._before, _counts(self._last), _counts(self.writer)))]


def _counts(writer: QueuedWriter[Any] | None) -> LineCounts:
    return writer.counts() if writer is not None else LineCounts()


def write_cache(segment: MetricsSegment, cache: str, now: CacheCounts) -> None:
    """Write the counts of a kind of token cache."""
    segment.gauge(families.CACHE_ENTRIES, cache).set(now.entries)
    segment.counter(families.CACHE_HITS, cache).reach(now.hits)
    segment.counter(families.CACHE_MISSES, cache).reach(now.misses)
    segment.counter(families.CACHE_EVICTIONS, cache).reach(now.evictions)


def write_accepts(segment: MetricsSegment, listener: socket.socket) -> None:
    """Write the listener's queue. listener: it may be closed before the last look."""
    now = accept_queue.look(listener)
    segment.gauge(families.ACCEPT_QUEUE).set(now.waiting)
    segment.counter(families.ACCEPT_DROPS).reach(now.dropped)


class Gauges:
    """A worker's sizes and others' counts, and what has to be tidied now and then. forget: gives up
    the labels of replicas and models that are gone for long."""

    def __init__(
        self,
        segment: MetricsSegment,
        gateway: Gateway,
        server: HttpServer,
        access: AccessLog | None,
        tracer: Tracer | None,
        listener: socket.socket,
        forget: Callable[[Labels], object],
    ) -> None:
        self._segment = segment
        self._forget = forget
        self._departures = Departures(KEPT_S)
        self._listener = listener
        self._gateway = gateway
        self._server = server
        self.access = LineGrowth(segment, access, families.ACCESS_LINES, families.ACCESS_DROPPED)
        self._traces = LineGrowth(
            segment, tracer, families.TRACES_EXPORTED, families.TRACES_DROPPED
        )
        self._memory = MemoryWatch(server.state.settings.memory_limit_ratio)
        self._connections = segment.gauge(families.CONNECTIONS)
        self._upstream_idle = segment.gauge(families.UPSTREAM_CONNECTIONS, "idle")
        self._upstream_busy = segment.gauge(families.UPSTREAM_CONNECTIONS, "busy")

    def sample(self) -> None:
        """Sample everything once."""
        gateway, segment = self._gateway, self._segment
        gateway.fleet.sweep()
        gateway.router.sweep(time.monotonic())
        idle = gateway.fleet.idle_connections
        self._connections.set(len(self._server.connections))
        write_accepts(segment, self._listener)
        self._server.state.body_memory.short = self._memory.short()
        self._upstream_idle.set(idle)
        self._upstream_busy.set(gateway.fleet.open_connections - idle)
        if gateway.admission_queue is not None:
            segment.gauge(families.ADMITTED).set(gateway.admission_queue.admission.running)
            segment.gauge(families.WAITING).set(gateway.admission_queue.admission.waiting)
        self._left_out()
        self._depart()
        for cache, counts in gateway.tokens.budgets.counts().items():
            write_cache(segment, cache, counts)
        self.access.write()
        self._traces.write()
        self._account()

    def _account(self) -> None:
        parts = memory_parts(self._gateway, self._server, self.access.writer, self._traces.writer)
        for name, part in parts.items():
            self._segment.gauge(families.MEMORY_BYTES, name).set(part.size_bytes)
            if part.limit_bytes:
                self._segment.gauge(families.MEMORY_LIMIT, name).set(part.limit_bytes)

    def _depart(self) -> None:
        gateway = self._gateway
        present = labels_of(gateway.fleet.state.replicas, gateway.tokens.models)
        gone = self._departures.tick(present, time.monotonic())
        if gone:
            self._forget(gone)

    def _left_out(self) -> None:
        out = self._gateway.router.left_out(time.monotonic())
        for replica in self._gateway.fleet.state.replicas:
            # From 0 on, so that rates and queries find it.
            self._segment.counter(families.EJECTIONS, replica.id)
            for why in SEEN_BY_WORKERS:
                left_out = float(out.get(replica.slot) is why)
                self._segment.gauge(families.LEFT_OUT, replica.id, why.value).set(left_out)
