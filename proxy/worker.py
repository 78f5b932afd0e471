"""A worker: one data loop, composed and run. Started by the supervisor as `python -m proxy.worker
CHANNEL_FD` (see proxy.channel for what they say to each other).

Invariants:
- Nothing is served before everything is loaded: tokenizers first, then the port, then Ready.
- The loop does data work only; the control plane's part arrives as whole snapshots.
- If the control plane goes away, the worker serves on with what it knows.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple, Self

import uvloop

from proxy.auth import Door, dropped_fields
from proxy.channel import Hello, WorkerEnd
from proxy.control.ports import share
from proxy.errors import ConfigError
from proxy.explain import Explainer
from proxy.gateway import Gateway
from proxy.keyring import client_keys, replica_key
from proxy.life import Life, Recorder, in_hand
from proxy.model import CacheChange, FleetState
from proxy.secret import Secret
from proxy.settings import Key, Settings, TokenSettings
from proxy.telemetry import families, planted
from proxy.telemetry.access import AccessLog
from proxy.telemetry.board import SharedBoard
from proxy.telemetry.logs import setup_logs
from proxy.telemetry.metrics import MetricsSegment
from proxy.telemetry.monitor import StallMonitor
from proxy.telemetry.stages import LOOP, METRICS, OTHER
from proxy.telemetry.traces import Tracer
from proxy.tls import server_context, upstream_context
from proxy.tokens.service import TokenService
from proxy.tokens.tokenizer import Tokenizer
from proxy.wire.exchange import Exchange
from proxy.wire.server import HttpServer

log = logging.getLogger(__name__)

_SAMPLE_PERIOD_S = 1.0
# Requests of each period that are shown on the live page.
_SHOWN_COUNT = 4
# A thread that holds the GIL gives it up after this long when the loop asks: rendering and
# hashing in the tokenizer threads must not make the loop wait Python's default of 5 ms.
_GIL_SWITCH_S = 0.0005
# A request makes some thirty objects that the collector tracks and leaves no cycle: looking at
# 700 of them at a time, Python's default, costs 4 % of a request. A pass over these takes 0.1 ms.
_YOUNG_OBJECTS = 10_000


class Worker:
    """Everything one data loop owns."""

    def __init__(self, channel_descriptor: int) -> None:
        self._descriptor = channel_descriptor
        self._drain = asyncio.Event()
        self._gateway: Gateway | None = None
        self._waiting: FleetState | None = None
        # What is known of caches is taken in piece by piece, a turn of the loop for each.
        self._changes: deque[CacheChange] = deque()
        self._end = WorkerEnd(
            on_fleet=self._fleet,
            on_learned=self._learned,
            on_cached=self._cached,
            on_drain=self._drain.set,
            on_lost=self._lost,
            on_explain=self._explain,
        )
        self._explainer: Explainer | None = None

    def drain(self) -> None:
        """Stops listening, finishes what is in flight, exits."""
        self._drain.set()

    async def run(self) -> int:
        """Serves until told to drain; returns the exit code."""
        hello = await self._end.connect(self._descriptor)
        try:
            access, tracer = _telling(hello)
            trust = _Trust.of(hello.settings)
            tokenizers = await asyncio.to_thread(_load, hello.settings.tokens)
            # Only now: a listener that nobody accepts from would still be dealt connections.
            listener = share(hello.host, hello.port)
            planted.install()
        except (ConfigError, OSError) as error:
            self._end.failed(str(error))
            self._end.close()
            return 2
        return await self._serve(hello, listener, tokenizers, trust, access, tracer)

    async def _serve(
        self,
        hello: Hello,
        listener: socket.socket,
        tokenizers: dict[str, Tokenizer],
        trust: "_Trust",
        access: AccessLog | None,
        tracer: Tracer | None,
    ) -> int:
        settings = hello.settings
        segment = MetricsSegment(hello.metrics_fd)
        for model, tokenizer in tokenizers.items():
            for part, engine in tokenizer.fast.engines():
                segment.gauge(families.TOKENIZER_PATH, model, part, engine).set(1.0)
        recorder = Recorder(segment, hello.worker, settings.prices, access, tracer)
        board = SharedBoard(hello.board_fd, hello.worker)
        tokens = TokenService(settings.tokens, tokenizers, settings.routing.block_tokens or 16)
        gateway = Gateway(
            settings,
            tokens,
            board,
            recorder,
            on_routed=self._end.learned if settings.server.workers > 1 else None,
            on_suspect=self._end.suspect,
            door=Door(trust.keys, recorder.unauthorized) if trust.keys is not None else None,
            replica_key=trust.replica_key,
            tls=trust.upstream_tls,
        )
        self._gateway = gateway
        self._explainer = Explainer(
            gateway.fleet,
            gateway.router,
            tokens,
            gateway.asking,
            self._end.explained,
            check_context=settings.tokens.context_check,
        )
        self._fleet(self._waiting or hello.fleet)
        if self._changes:
            asyncio.get_running_loop().call_soon(self._take_change)

        def refused(exchange: Exchange) -> None:
            life = Life(exchange.started_s)
            life.request_id = exchange.request_id
            life.outcome = "gateway_error"
            life.ended_s = time.monotonic()
            recorder.record(life, exchange.status)

        server = HttpServer(
            gateway.handle,
            settings.server,
            guarded=True,
            on_refused=refused,
            dropped=dropped_fields(trust.keys, trust.replica_key),
        )
        await server.listen(listener, trust.server_tls)
        monitor = StallMonitor(
            settings.stalls,
            segment,
            hello.worker,
            histogram=recorder.stall,
            in_hand=lambda: in_hand(gateway.in_hand),
            on_stall=self._end.stalled,
        )
        # What is loaded now lives as long as the process: the collector need not walk it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS)
        monitor.start()
        self._end.ready()
        while not self._drain.is_set():
            self._sample(gateway, server, tokens, recorder)
            self._end.beats(monitor.sample())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAMPLE_PERIOD_S):
                    await self._drain.wait()
        gateway.draining = True
        cut = await server.drain(settings.server.drain_deadline_s)
        for teller in (access, tracer):
            if teller is not None:
                teller.close()
        self._sample(gateway, server, tokens, recorder)
        monitor.sample()
        monitor.stop()
        self._explainer.close()
        gateway.parity.close()
        gateway.fleet.close()
        tokens.close()
        self._end.close()
        if cut:
            log.warning("drain ended with %d connections cut", cut)
        return 0

    def _sample(
        self, gateway: Gateway, server: HttpServer, tokens: TokenService, recorder: Recorder
    ) -> None:
        LOOP.mark(METRICS)
        gateway.fleet.sweep()
        gateway.router.sweep(time.monotonic())
        recorder.gauges(
            connections=len(server.connections),
            upstream_open=gateway.fleet.open_connections,
            upstream_idle=gateway.fleet.idle_connections,
        )
        if gateway.gate is not None:
            admission = gateway.gate.admission
            recorder.places(admission.running, admission.waiting)
        recorder.index(gateway.router.sizes_bytes())
        out = gateway.router.health.ejected(time.monotonic())
        for replica in gateway.fleet.state.replicas:
            recorder.ejected(replica.id, replica.slot in out)
        for cache, counts in tokens.cache_counts().items():
            recorder.cache(cache, counts)
        samples = recorder.take_samples(_SHOWN_COUNT)
        if samples:
            self._end.routed(samples)
        recorder.logged()
        LOOP.mark(OTHER)

    def _fleet(self, state: FleetState) -> None:
        if self._gateway is None:
            self._waiting = state
        else:
            self._gateway.update(state)
            self._gateway.parity.update(state, self._gateway.fleet)

    def _learned(self, slot: int, blocks: bytes) -> None:
        if self._gateway is not None:
            self._gateway.router.learn(slot, blocks, time.monotonic())

    def _cached(self, change: CacheChange) -> None:
        self._changes.append(change)
        if len(self._changes) == 1 and self._gateway is not None:
            asyncio.get_running_loop().call_soon(self._take_change)

    def _take_change(self) -> None:
        assert self._gateway is not None
        self._gateway.router.cached(self._changes.popleft())
        if self._changes:
            asyncio.get_running_loop().call_soon(self._take_change)

    def _explain(self, number: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes) -> None:
        if self._explainer is not None:
            self._explainer.ask(number, headers, body)

    def _lost(self) -> None:
        log.warning("the control plane is gone; serving on with what is known")


class _Trust(NamedTuple):
    """Read from files, once: clients' keys, the one for replicas, TLS on both sides."""

    keys: tuple[Key, ...] | None
    replica_key: Secret | None
    server_tls: ssl.SSLContext | None
    upstream_tls: ssl.SSLContext | None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises ConfigError."""
        https = any(url.startswith("https:") for url in settings.backends)
        return cls(
            client_keys(settings.auth),
            replica_key(settings.upstream),
            server_context(settings.server),
            upstream_context(settings.upstream) if https else None,
        )


def _telling(hello: Hello) -> tuple[AccessLog | None, Tracer | None]:
    """What writes about requests, as far as it is on."""
    log_settings, tracing = hello.settings.log, hello.settings.tracing
    access = AccessLog(log_settings, hello.worker) if log_settings.access != "off" else None
    return access, Tracer(tracing, hello.worker) if tracing.endpoint else None


def _load(settings: TokenSettings) -> dict[str, Tokenizer]:
    tokenizers = {}
    for model, folder in settings.folders.items():
        tokenizers[model] = Tokenizer.load(model, Path(folder), fast=settings.fast_engines)
        # The first encode builds tables; nobody's request should pay for it.
        tokenizers[model].encode("warm up", add_special_tokens=True)
    return tokenizers


def main() -> None:
    """Entry point of the worker process."""
    setup_logs("worker")
    sys.setswitchinterval(_GIL_SWITCH_S)
    # The supervisor passes on what it is told; a Ctrl-C at the terminal is not for workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def run() -> int:
        worker = Worker(int(sys.argv[1]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        return await worker.run()

    sys.exit(uvloop.run(run()))


if __name__ == "__main__":
    main()
