"""The control plane's process: composition root, startup, drain.

Invariants:
- What the operator got wrong is one sentence (ConfigError), raised before the first worker runs
  wherever it can be known by then.
- First SIGTERM or SIGINT: not ready any more, workers finish what is in flight within
  `drain_deadline_s`, exit 0; what they had to cut makes it 1. A second one, or a worker that is
  later still: workers are killed, exit 1.
- The data path does not run here and does not depend on this process once it is told the fleet.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import uvloop
from aiohttp import web

from tokenlane.channel import messages
from tokenlane.channel.messages import Up
from tokenlane.config.keyring import replica_key
from tokenlane.config.settings import Settings
from tokenlane.config.tls import upstream_context
from tokenlane.control.admin import admin_app
from tokenlane.control.admin_access import AdminAccess
from tokenlane.control.admin_server import AdminRunner
from tokenlane.control.changes import Changes
from tokenlane.control.checks import SLOT_LIMIT, check_settings
from tokenlane.control.dashboard.history import PERIOD_S
from tokenlane.control.dashboard.view import View
from tokenlane.control.discovery.sources import Discovery
from tokenlane.control.fleet_table import FleetTable, Probe, ReplicaChange
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.kv_events.peer_accounts import PeerAccounts, account_route
from tokenlane.control.kv_events.subscribers import KvEvents
from tokenlane.control.peers.load_sharing import LoadSharing
from tokenlane.control.probes import Prober
from tokenlane.control.reload import Given, InForce, Reloader, read_all
from tokenlane.control.roster import STATIC, Roster
from tokenlane.control.tokenizers.resolution import given_sources, resolve, with_folders
from tokenlane.control.waits import unless
from tokenlane.control.workers import WorkerPool
from tokenlane.runtime import descriptors, malloc_arenas, orphans, ports
from tokenlane.runtime.sd_notify import notify
from tokenlane.telemetry.load_board import SharedBoard, create_board
from tokenlane.telemetry.metrics.departures import labels_of
from tokenlane.telemetry.metrics.exposition import Totals

WORKER_ARGV = (sys.executable, "-m", "tokenlane.worker.main")
LOAD_PERIOD_S = 0.5
KILL_GRACE_S = 2.0

log = logging.getLogger("fleet")


class Supervisor:
    """One gateway. `say` gets the startup lines. `argv`: what a worker is started with.
    `on_ready` is called with the data port's URL once it serves. `given`: where the settings came
    from; without it they are never reloaded."""

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], None],
        argv: Sequence[str] = WORKER_ARGV,
        on_ready: Callable[[str], None] = lambda _: None,
        given: Given | None = None,
    ) -> None:
        self._say = say
        self._argv = argv
        self._on_ready = on_ready
        check_settings(settings)
        self._table = FleetTable(settings.backends, settings.control)
        shares = bool(settings.fleet.store)
        self._board_fd = create_board(SLOT_LIMIT, settings.server.workers, peers=shares)
        board = SharedBoard(self._board_fd, None)
        self._state = GatewayState(settings, self._table, Totals(), board, given_sources(settings))
        self._prober = Prober(
            settings.control, self._on_probe,
            replica_key(settings.upstream), upstream_context(settings.upstream),
        )  # fmt: skip
        for replica in self._table.replicas:
            self._prober.add(replica.slot, replica.url)
        self._roster = Roster(self._table, SLOT_LIMIT, board.load, self._on_members)
        self._reloader = Reloader(given, read_all(settings), check_settings, self._apply)
        self._access = AdminAccess(
            lambda: self._reloader.in_force.settings.admin, lambda: self._reloader.in_force.token
        )
        self._changes = Changes(
            self._roster,
            self._access,
            lambda slot: board.load(slot).requests,
            lambda: self._reloader.reload("a reload was asked for"),
        )
        self._discovery = Discovery(self._roster)
        self._reloads: set[asyncio.Task[None]] = set()
        accounts = PeerAccounts(lambda: settings.fleet.peers, self._access.reading_token)
        self._kv = KvEvents(
            settings, lambda: self._table.state, self._state.ends, self._on_capacity, accounts
        )
        self._sharing = LoadSharing(self._state, self._kv.follows)
        self._view = View(
            self._state, self._roster, self._reloader,
            (self._kv.samples, self._sharing.samples), self._sharing.row,
        )  # fmt: skip
        self._publish_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._broken = False

    async def run(self) -> int:
        """Serves until a signal; the process's exit code. ConfigError if it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        server = self._state.settings.server
        try:
            with ports.reserve(server.host, server.port, shared=server.share_port) as held:
                return await self._with_admin(ports.address_of(held))
        finally:
            os.close(self._board_fd)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _with_admin(self, address: tuple[str, int]) -> int:
        admin = self._state.settings.admin
        listener = ports.admin_listener(admin.host, admin.port)
        app = admin_app(self._view, (*self._changes.routes(), account_route(self._kv.account)))
        runner = AdminRunner(app, self._access, shutdown_timeout=1.0)
        scheme = "https" if self._state.settings.server.tls_cert_file else "http"
        try:
            await runner.setup()
            await web.SockSite(runner, listener).start()
            self._state.urls = (
                ports.url_of(*address, scheme=scheme),
                ports.url_of(*ports.address_of(listener)),
            )
            return await self._with_discovery(address)
        finally:
            await runner.cleanup()
            listener.close()

    async def _with_discovery(self, address: tuple[str, int]) -> int:
        self._discovery.configure(self._state.settings.discovery)
        try:
            # As long as for a probe: who is found later comes into the fleet while it serves.
            deadline_s = self._state.settings.control.probe_deadline_s
            await unless(self._stop, self._discovery.first.wait(), deadline_s)
            return await self._with_probes(address)
        finally:
            await self._discovery.close()

    async def _with_probes(self, address: tuple[str, int]) -> int:
        tasks = [
            self._keep("prober", self._prober.run()),
            self._keep("kv-events", self._kv.run(self._prober.session)),
            self._keep("files", self._reloader.watch()),
            self._keep("peers", self._sharing.run()),
            self._keep("heap", malloc_arenas.trim_regularly()),
        ]
        self._watch()
        try:
            # Not longer than one probe may take: dead replicas must not keep the living waiting.
            deadline_s = self._state.settings.control.probe_deadline_s
            await unless(self._stop, self._prober.first_round.wait(), deadline_s)
            state = self._state
            await unless(self._stop, resolve(state.settings, self._table, state.sources))
            return await self._with_workers(address)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for timer in (self._publish_timer, self._watch_timer):
                if timer is not None:
                    timer.cancel()

    async def _with_workers(self, address: tuple[str, int]) -> int:
        pool = self._state.pool = WorkerPool(
            self._argv,
            with_folders(self._state.settings, self._state.sources),
            address,
            self._board_fd,
            self._state.totals,
            fleet=lambda: self._table.state,
            keys=self._reloader.in_force.keys,
            on_news=self._on_news,
        )
        self._state.workers = pool.workers
        pool.start()
        try:
            if await unless(self._stop, pool.started):
                self._view.announce(self._say)
                notify("READY=1", f"STATUS=serves on {self._state.urls[0]}")
                if count := orphans.dismiss(address[1]):
                    log.info("took over from %d workers whose supervisor had died", count)
                self._on_ready(self._state.urls[0])
                # What is loaded now lives as long as the process: without it a full pass of the
                # collector is cheap, and comes soon enough to bound what is garbage in cycles.
                gc.collect()
                gc.freeze()
                await self._stop.wait()
            self._state.draining = True
            notify("STOPPING=1", "STATUS=draining")
            self._say("draining; a second signal stops at once")
            pool.drain()
            deadline_s = self._state.settings.server.drain_deadline_s + KILL_GRACE_S
            ended = await unless(self._stop_now, pool.ended(), deadline_s)
            return 0 if ended and pool.clean and not self._broken else 1
        finally:
            pool.kill()
            await pool.ended()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._watch_timer = loop.call_later(PERIOD_S, self._watch)
        now_s = time.monotonic()
        self._roster.sweep()
        self._state.totals.follow(labels_of(self._table.replicas, self._state.sources), now_s)
        # Last: what is only shown holds up nothing else.
        self._view.watch.tick(now_s)

    def _on_signal(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def _on_hangup(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload_for("SIGHUP"), name="reload")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_for(self, why: str) -> None:
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        await self._reloader.reload(why)
        notify("READY=1")

    async def _apply(self, new: InForce) -> list[str]:
        """Puts other settings in force, or says why not. The workers first: one of them may not
        want them, and then all get the old ones back."""
        settings, before = new.settings, self._reloader.in_force
        upstream = replica_key(settings.upstream), upstream_context(settings.upstream)
        if self._state.pool is not None:
            sources = self._state.sources
            problems = await self._state.pool.reload(with_folders(settings, sources), new.keys)
            if problems:
                await self._state.pool.reload(with_folders(before.settings, sources), before.keys)
                return problems
        self._state.settings = settings
        self._table.settings = settings.control
        self._prober.configure(settings.control, *upstream)
        self._roster.want(STATIC, settings.backends)
        self._discovery.configure(settings.discovery)
        return []

    def _keep(self, name: str, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(run, name=name)
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        # Without probes the fleet would slowly become a lie: better to be restarted.
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s died; stopping", task.get_name(), exc_info=task.exception())
            self._broken = True
            self._stop.set()

    def _on_probe(self, slot: int, probe: Probe) -> None:
        before = self._table.get(slot)
        answers = self._state.answers(slot) if probe.reason == "timeout" else 0
        change = self._table.observe(slot, probe, answers)
        after = self._table.get(slot)
        if before is None or after is None:
            return
        if not probe.good:
            self._state.probe_failures[after.id, probe.reason] += 1
        if before.up != after.up:
            why = f"{probe.reason} {probe.status}" if probe.status else probe.reason
            say = log.info if after.up else log.warning
            say("replica %s is %s", after.id, "up" if after.up else f"down ({why})")
        if before.incarnation != after.incarnation:
            self._kv.gone(slot)
        if change is ReplicaChange.SHAPE:
            self._publish()
        elif change is ReplicaChange.LOAD and self._publish_timer is None:
            loop = asyncio.get_running_loop()
            self._publish_timer = loop.call_later(LOAD_PERIOD_S, self._publish)

    def _on_capacity(self, slot: int, cache_blocks: int) -> None:
        if self._table.learned(slot, cache_blocks) is ReplicaChange.SHAPE:
            self._publish()

    def _on_news(self, worker: int, message: Up) -> None:
        match message:
            case messages.Suspect(slot):
                self._prober.nudge(slot)
            case messages.ProofFound(news) if self._table.proof(news):
                self._publish()
            case messages.RoutedSamples(samples):
                self._view.watch.routed(samples)
            case _:
                self._sharing.told(worker, message)

    def _on_members(self, added: list[int], gone: list[int]) -> None:
        """Slots that have another replica now, or none any more."""
        there = {replica.id for replica in self._table.replicas}
        failures = self._state.probe_failures
        for key in [key for key in failures if key[0] not in there]:
            del failures[key]
        for slot in gone:
            self._prober.remove(slot)
        for slot in added:
            replica = self._table.get(slot)
            assert replica is not None
            self._prober.add(slot, replica.url)
        self._publish()

    def _publish(self) -> None:
        self._kv.update()
        if self._publish_timer is not None:
            self._publish_timer.cancel()
            self._publish_timer = None
        if self._state.pool is not None:
            self._state.pool.publish(self._table.state)


def serve(
    settings: Settings,
    say: Callable[[str], None],
    on_ready: Callable[[str], None] = lambda _: None,
    given: Given | None = None,
) -> int:
    """Runs a gateway in this process until a signal; its exit code. ConfigError at the start.

    on_ready: called with the data port's URL once it serves. given: where the settings came from;
    without it they are never reloaded.
    """

    descriptors.raise_limit()

    async def run() -> int:
        return await Supervisor(settings, say, on_ready=on_ready, given=given).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
