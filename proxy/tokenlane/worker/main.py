"""A worker: one data loop, composed and run.

The supervisor starts it as `python -m tokenlane.worker.main CHANNEL_FD`; tokenlane.channel has what
they say to each other.

Invariants:
- Nothing is served before everything is loaded: tokenizers first, then the port, then Ready.
- The loop does data work only; the control plane's part arrives as whole snapshots.
- If the supervisor goes away, the worker serves on with what it knows, for a while: a new one may
  take over, and nobody else would ever end it.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections import deque
from functools import partial

import uvloop

from tokenlane.admission.auth import Authenticator, dropped_fields
from tokenlane.admission.queue import AdmissionQueue
from tokenlane.channel import messages
from tokenlane.channel.ends import WorkerEnd
from tokenlane.channel.frames import LONG_BACKLOG_LIMIT_BYTES
from tokenlane.channel.messages import Down, Hello, Reload
from tokenlane.config.settings import ServerSettings
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import CacheChange, FleetState
from tokenlane.gateway.explain import Explainer
from tokenlane.gateway.kept_responses import KeptResponses
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request import Gateway
from tokenlane.gateway.request_record import RequestRecord, in_hand
from tokenlane.http.acceptor import HANDSHAKE_S
from tokenlane.http.exchange import Exchange
from tokenlane.http.server import HttpServer
from tokenlane.protocols.dialects import dialect_of
from tokenlane.protocols.routes import HEALTH_PATHS
from tokenlane.runtime import cpu_scheduling, descriptors, malloc_arenas, orphans
from tokenlane.runtime.ports import reuse_port_socket
from tokenlane.telemetry.load_board import SharedBoard
from tokenlane.telemetry.log.setup import setup_logs
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.stalls.monitor import StallMonitor
from tokenlane.telemetry.stalls.stages import DURING, METRICS
from tokenlane.worker.gauges import Gauges
from tokenlane.worker.place_reports import PlaceReports
from tokenlane.worker.prefix_reports import PrefixReports
from tokenlane.worker.reload import WorkerReload
from tokenlane.worker.resources import Resources, Tokenizers, load_tokenizers

log = logging.getLogger(__name__)

_SAMPLE_PERIOD_S = 1.0
# Requests of each period that are shown on the live page.
_SHOWN_COUNT = 4


class Worker:
    """Everything one data loop owns."""

    def __init__(self, channel_descriptor: int) -> None:
        self._descriptor = channel_descriptor
        self._port = 0
        self._drain = asyncio.Event()
        self._gateway: Gateway | None = None
        self._board: SharedBoard | None = None
        self._waiting: FleetState | None = None
        # What is known of caches is taken in piece by piece, a turn of the loop for each.
        self._changes: deque[CacheChange] = deque()
        end = self._end = WorkerEnd(self._received, self._lost)
        self._prefixes = PrefixReports(lambda prefixes: end.offer(messages.Learned(prefixes)))
        self._places = PlaceReports(
            self._admission_queue, lambda places: end.send(messages.Places(places))
        )
        self._kept = KeptResponses(
            lambda *made: end.offer(messages.Kept(*made), LONG_BACKLOG_LIMIT_BYTES),
            lambda *asked: end.offer(messages.WhoseResponse(*asked), LONG_BACKLOG_LIMIT_BYTES),
        )
        self._in_force: WorkerReload | None = None
        # Of a worker that does not serve yet, the last one.
        self._reload_waiting: Reload | None = None
        self._reloading: set[asyncio.Task[None]] = set()
        self._explainer: Explainer | None = None

    def drain(self) -> None:
        """Stop listening, finish what is in flight, exit."""
        self._drain.set()

    async def run(self) -> int:
        """Serve until told to drain; return the exit code."""
        hello = await self._end.connect(self._descriptor)
        try:
            resources = Resources.of(hello)
            tokenizers = await load_tokenizers(hello.settings.tokens)
            # Only now: a listener that nobody accepts from would still be dealt connections.
            listener = reuse_port_socket(hello.host, hello.port)
            self._port = hello.port
        except (ConfigError, OSError) as error:
            self._end.send(messages.Failed(str(error)))
            self._end.close()
            return 2
        return await self._serve(hello, listener, resources, tokenizers)

    async def _serve(
        self, hello: Hello, listener: socket.socket, resources: Resources, tokenizers: Tokenizers
    ) -> int:
        settings = hello.settings
        segment = MetricsSegment(hello.metrics_fd)
        _show_engines(segment, tokenizers)
        recorder = Recorder(segment, settings.prices, resources.access, resources.tracer)
        gateway = self._gateway = self._compose(hello, resources, tokenizers, recorder)
        explainer = self._explainer = Explainer(
            gateway.fleet, gateway.router, gateway.planner,
            lambda *answer: self._end.send(messages.Explained(*answer)),
        )  # fmt: skip
        self._fleet(self._waiting or hello.fleet)
        if self._changes:
            asyncio.get_running_loop().call_soon(self._take_change)
        server = _server(settings.server, resources, gateway, recorder)
        gauges = Gauges(
            segment, gateway, server, resources.access, resources.tracer, listener, recorder.forget
        )
        in_force = self._in_force = WorkerReload(
            hello.worker, settings, resources,
            gateway=gateway, server=server, recorder=recorder,
            gauges=gauges,
        )  # fmt: skip
        if self._reload_waiting is not None:  # nobody comes in with a key that was taken away
            await self._reloaded(in_force, self._reload_waiting)
        await server.listen(listener, resources.server_tls)
        monitor = self._watching(hello, gateway, segment)
        malloc_arenas.settle()
        monitor.start()
        if settings.fleet.store:
            self._places.start()
        doubts = {name: one.doubts for name, one in tokenizers.items() if one.doubts}
        self._end.send(messages.WorkerReady(doubts))
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell(gauges, recorder, monitor), name="telling")
            await self._drain.wait()
            gateway.draining = True
            deadline_s = in_force.settings.server.drain_deadline_s
            cut = await server.drain(deadline_s, handshake_s=HANDSHAKE_S)
            telling.cancel()
        in_force.resources.close()
        self._sample(gauges, recorder)
        monitor.sample()
        monitor.stop()
        explainer.close()
        self._places.stop()
        gateway.close()
        self._end.close()
        if cut:
            log.warning("drain ended with %d answers cut", cut)
        return 1 if cut else 0

    async def _tell(self, gauges: Gauges, recorder: Recorder, monitor: StallMonitor) -> None:
        """Say for ever what was counted: to the supervisor it is the sign of life."""
        while True:
            self._sample(gauges, recorder)
            self._end.offer(messages.Beats(monitor.sample()))
            await asyncio.sleep(_SAMPLE_PERIOD_S)

    def _compose(
        self, hello: Hello, resources: Resources, tokenizers: Tokenizers, recorder: Recorder
    ) -> Gateway:
        end, self._board = self._end, SharedBoard(hello.board_fd, hello.worker)
        # Other workers, or other gateways, want to know.
        told = hello.settings.server.workers > 1 or bool(hello.settings.fleet.store)
        return Gateway(
            hello.settings,
            tokenizers,
            self._board,
            recorder,
            on_routed=self._prefixes.routed if told else None,
            on_suspect=lambda slot: end.offer(messages.Suspect(slot)),
            on_proof=lambda news: end.send(messages.ProofFound(news)),
            share=(hello.worker, hello.settings.server.workers),
            kept=self._kept,
            authenticator=Authenticator(resources.keys, recorder.unauthorized)
            if resources.keys is not None
            else None,
            replica_key=resources.replica_key,
            tls=resources.upstream_tls,
        )

    def _watching(self, hello: Hello, gateway: Gateway, segment: MetricsSegment) -> StallMonitor:
        return StallMonitor(
            hello.settings.stalls,
            segment,
            hello.worker,
            histogram=segment.histogram(families.LOOP_STALL, str(hello.worker)),
            in_hand=lambda: in_hand(gateway.in_hand),
            on_stall=lambda stall: self._end.offer(messages.Stalled(stall)),
        )

    def _sample(self, gauges: Gauges, recorder: Recorder) -> None:
        with DURING[METRICS]:
            gauges.sample()
            samples = recorder.take_samples(_SHOWN_COUNT)
            if samples:
                self._end.offer(messages.RoutedSamples(samples))

    def _admission_queue(self) -> AdmissionQueue | None:
        return self._gateway.admission_queue if self._gateway is not None else None

    def _received(self, message: Down) -> None:
        gateway = self._gateway
        match message:
            case messages.FleetUpdate(state):
                self._fleet(state)
            case messages.Learned(prefixes):
                if gateway is not None:
                    now_s = time.monotonic()
                    for slot, blocks, tenant in prefixes:
                        gateway.router.learn(slot, blocks, now_s, tenant)
            case messages.ResponseOf(number, slot, tenant):
                self._kept.told(number, slot, tenant)
            case messages.Cached(change):
                self._changes.append(change)
                if len(self._changes) == 1 and gateway is not None:
                    asyncio.get_running_loop().call_soon(self._take_change)
            case messages.Explain():
                if self._explainer is not None:
                    self._explainer.ask(message)
            case messages.Reload():
                self._reload(message)
            case messages.Portions(portions):
                self._places.portions(portions)
            case messages.Drain():
                self._drain.set()

    def _fleet(self, state: FleetState) -> None:
        if self._gateway is None:
            self._waiting = state
        else:
            self._gateway.update(state)
            self._gateway.prover.update(state)
            self._prefixes.update(state)

    def _take_change(self) -> None:
        assert self._gateway is not None
        self._gateway.router.cached(self._changes.popleft())
        if self._changes:
            asyncio.get_running_loop().call_soon(self._take_change)

    def _reload(self, message: Reload) -> None:
        if self._in_force is None:
            self._reload_waiting = message
            return
        task = asyncio.get_running_loop().create_task(self._reloaded(self._in_force, message))
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reloaded(self, in_force: WorkerReload, message: Reload) -> None:
        self._end.send(messages.Reloaded(message.number, await in_force.apply(message)))

    def _lost(self) -> None:
        if self._in_force is None:
            self._drain.set()
            return
        orphan_s = self._in_force.settings.server.orphan_s
        log.warning("the supervisor is gone; serving on with what is known for %g s", orphan_s)
        orphans.become(self._port)
        if self._board is not None:
            self._board.forget_peers()
        asyncio.get_running_loop().call_later(orphan_s, self._drain.set)


def _server(
    settings: ServerSettings, resources: Resources, gateway: Gateway, recorder: Recorder
) -> HttpServer:
    return HttpServer(
        gateway.handle,
        settings,
        guarded=True,
        on_refused=partial(_refused, recorder),
        on_shed=recorder.refused_clients,
        spared=HEALTH_PATHS,
        dropped=dropped_fields(resources.keys, resources.replica_key),
        error_format=dialect_of,
        known_part=gateway.tokens.bodies.part,
    )


def _show_engines(segment: MetricsSegment, tokenizers: Tokenizers) -> None:
    for model, tokenizer in tokenizers.items():
        for part, engine in tokenizer.fast.engines():
            segment.gauge(families.TOKENIZER_PATH, model, part, engine).set(1.0)


def _refused(recorder: Recorder, exchange: Exchange) -> None:
    """Record a request that the server answered by itself."""
    record = RequestRecord(exchange.started_s)
    record.request_id = exchange.request_id
    record.method, record.error_code = exchange.method, exchange.error_code
    record.outcome = "gateway_error"
    record.ended_s = time.monotonic()
    if exchange.status == 503:
        recorder.shed("", "memory")
    recorder.record(record, exchange.status)


def main() -> None:
    """Entry point of the worker process."""
    setup_logs("worker")
    cpu_scheduling.take_soon()
    malloc_arenas.use_one_arena()
    descriptors.raise_limit()
    # The supervisor passes on what it is told; a Ctrl-C at the terminal is not for workers, nor is
    # the SIGHUP that it reloads by, which may be sent to all of a service.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def run() -> int:
        worker = Worker(int(sys.argv[1]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.drain)
        return await worker.run()

    sys.exit(uvloop.run(run()))


if __name__ == "__main__":
    main()
