"""Gauges that are sampled now and then rather than counted as things happen: sizes, and counts kept
elsewhere.

Invariants:
- A sample costs the same however busy the worker is, and is never taken on a request's path.
- Counts kept elsewhere only grow; this adds their growth since the last sample.
"""

import socket
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tokenlane.gateway.request import Gateway
from tokenlane.http.server import HttpServer
from tokenlane.routing.candidates import SEEN_BY_WORKERS
from tokenlane.runtime import accept_queue
from tokenlane.runtime.cgroup import MemoryWatch
from tokenlane.telemetry.log.access_log import AccessLog, LineCounts
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.departures import KEPT_S, Departures, Labels, labels_of
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.worker.memory_account import memory_parts

_Writer = TypeVar("_Writer", AccessLog, Tracer)


class CacheGrowth:
    """Counts of the token caches, written as metrics."""

    def __init__(self, segment: MetricsSegment) -> None:
        self._segment = segment
        self._before: dict[str, CacheCounts] = {}

    def write(self, cache: str, now: CacheCounts) -> None:
        """Write the current counts of a kind of cache."""
        segment = self._segment
        before = self._before.get(cache, CacheCounts())
        self._before[cache] = now
        segment.gauge(families.CACHE_ENTRIES, cache).set(now.entries)
        segment.counter(families.CACHE_HITS, cache).inc(now.hits - before.hits)
        segment.counter(families.CACHE_MISSES, cache).inc(now.misses - before.misses)
        segment.counter(families.CACHE_EVICTIONS, cache).inc(now.evictions - before.evictions)


class LineGrowth(Generic[_Writer]):
    """Counts of what a writer off the loop (access log, traces) wrote and lost. Both exist from the
    start, since 0 is a value too."""

    def __init__(
        self, segment: MetricsSegment, writer: _Writer | None, done: Family, lost: Family
    ) -> None:
        self.writer: _Writer | None = writer
        self._before = LineCounts()
        self._done = segment.counter(done)
        self._full = segment.counter(lost, "full")
        self._failed = segment.counter(lost, "failed")

    def follow(self, writer: _Writer | None) -> None:
        """Follow another writer, whose counts begin at zero."""
        self.write()
        self.writer = writer
        self._before = LineCounts()

    def write(self) -> None:
        """Write the current counts."""
        if self.writer is None:
            return
        before, now = self._before, self.writer.counts()
        self._before = now
        self._done.inc(now.written - before.written)
        self._full.inc(now.full - before.full)
        self._failed.inc(now.failed - before.failed)


class AcceptGrowth:
    """The listener's queue, written as metrics. listener: it may be closed before the last look."""

    def __init__(self, segment: MetricsSegment, listener: socket.socket) -> None:
        self._listener = listener
        self._waiting = segment.gauge(families.ACCEPT_QUEUE)
        self._drops = segment.counter(families.ACCEPT_DROPS)
        self._dropped = 0

    def write(self) -> None:
        """Write the current counts."""
        now = accept_queue.look(self._listener)
        self._waiting.set(now.waiting)
        if now.dropped > self._dropped:
            self._drops.inc(now.dropped - self._dropped)
            self._dropped = now.dropped


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
        self._accepts = AcceptGrowth(segment, listener)
        self._gateway = gateway
        self._server = server
        self._caches = CacheGrowth(segment)
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
        self._accepts.write()
        self._server.state.body_memory.short = self._memory.short()
        self._upstream_idle.set(idle)
        self._upstream_busy.set(gateway.fleet.open_connections - idle)
        if gateway.admission_queue is not None:
            segment.gauge(families.ADMITTED).set(gateway.admission_queue.admission.running)
            segment.gauge(families.WAITING).set(gateway.admission_queue.admission.waiting)
        self._left_out()
        self._depart()
        for cache, counts in gateway.tokens.cache_counts().items():
            self._caches.write(cache, counts)
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
