"""What is looked at now and then rather than counted as it happens: sizes, and the counts that
others keep.

Invariants:
- A look costs the same however busy the worker is, and is never taken on a request's path.
- Counts that others keep only grow; what is added here is their growth since the last look.
"""

import socket
import time

from tokenlane.gateway.request import Gateway
from tokenlane.http.server import HttpServer
from tokenlane.runtime import accept_queue
from tokenlane.runtime.cgroup import MemoryWatch
from tokenlane.telemetry.log.access_log import AccessLog, LineCounts
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.tokens.service import TokenService


class CacheGrowth:
    """Counts of the token caches, written as metrics."""

    def __init__(self, segment: MetricsSegment) -> None:
        self._segment = segment
        self._before: dict[str, CacheCounts] = {}

    def write(self, cache: str, now: CacheCounts) -> None:
        """A kind of cache, as it is now."""
        segment = self._segment
        before = self._before.get(cache, CacheCounts())
        self._before[cache] = now
        segment.gauge(families.CACHE_ENTRIES, cache).set(now.entries)
        segment.gauge(families.CACHE_BYTES, cache).set(now.size_bytes)
        segment.counter(families.CACHE_HITS, cache).inc(now.hits - before.hits)
        segment.counter(families.CACHE_MISSES, cache).inc(now.misses - before.misses)
        segment.counter(families.CACHE_EVICTIONS, cache).inc(now.evictions - before.evictions)


class LineGrowth:
    """What a writer off the loop (access log, traces) wrote and lost. Both are shown from the
    start: none is a number too."""

    def __init__(
        self, segment: MetricsSegment, writer: AccessLog | Tracer | None, done: Family, lost: Family
    ) -> None:
        self._writer = writer
        self._before = LineCounts()
        self._done = segment.counter(done)
        self._full = segment.counter(lost, "full")
        self._failed = segment.counter(lost, "failed")

    def follow(self, writer: AccessLog | Tracer | None) -> None:
        """From now on this one, which begins at zero."""
        self.write()
        self._writer, self._before = writer, LineCounts()

    def write(self) -> None:
        """As it is now."""
        if self._writer is None:
            return
        before, now = self._before, self._writer.counts()
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
        """As it is now."""
        now = accept_queue.look(self._listener)
        self._waiting.set(now.waiting)
        if now.dropped > self._dropped:
            self._drops.inc(now.dropped - self._dropped)
            self._dropped = now.dropped


class Gauges:
    """A worker's sizes and others' counts, and what has to be tidied now and then."""

    def __init__(
        self,
        segment: MetricsSegment,
        gateway: Gateway,
        server: HttpServer,
        tokens: TokenService,
        access: AccessLog | None,
        tracer: Tracer | None,
        listener: socket.socket,
    ) -> None:
        self._segment = segment
        self._accepts = AcceptGrowth(segment, listener)
        self._gateway = gateway
        self._server = server
        self._tokens = tokens
        self._caches = CacheGrowth(segment)
        self.access = LineGrowth(segment, access, families.ACCESS_LINES, families.ACCESS_DROPPED)
        self._lines = (
            self.access,
            LineGrowth(segment, tracer, families.TRACES_EXPORTED, families.TRACES_DROPPED),
        )
        self._memory = MemoryWatch(server.state.settings.memory_limit_ratio)
        self._held = segment.gauge(families.HELD_BYTES)
        self._connections = segment.gauge(families.CONNECTIONS)
        self._upstream_idle = segment.gauge(families.UPSTREAM_CONNECTIONS, "idle")
        self._upstream_busy = segment.gauge(families.UPSTREAM_CONNECTIONS, "busy")

    def sample(self) -> None:
        """Looks."""
        gateway, segment = self._gateway, self._segment
        gateway.fleet.sweep()
        gateway.router.sweep(time.monotonic())
        idle = gateway.fleet.idle_connections
        self._connections.set(len(self._server.connections))
        self._accepts.write()
        self._held.set(self._server.state.body_memory.held_bytes)
        self._server.state.body_memory.short = self._memory.short()
        self._upstream_idle.set(idle)
        self._upstream_busy.set(gateway.fleet.open_connections - idle)
        if gateway.admission_queue is not None:
            segment.gauge(families.ADMITTED).set(gateway.admission_queue.admission.running)
            segment.gauge(families.WAITING).set(gateway.admission_queue.admission.waiting)
        for part, size_bytes in gateway.router.sizes_bytes().items():
            segment.gauge(families.INDEX_BYTES, part).set(size_bytes)
        self._ejections()
        for cache, counts in self._tokens.cache_counts().items():
            self._caches.write(cache, counts)
        for lines in self._lines:
            lines.write()

    def _ejections(self) -> None:
        out = self._gateway.router.health.ejected(time.monotonic())
        for replica in self._gateway.fleet.state.replicas:
            self._segment.counter(families.EJECTIONS, replica.id)  # from 0 on, for rates
            self._segment.gauge(families.EJECTED, replica.id).set(float(replica.slot in out))
