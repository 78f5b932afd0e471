"""The worker processes: started, told, restarted when they die, drained.

Invariants:
- A worker number has at most one process. Its metrics are folded and its column of the load
  board is zeroed after its process is gone and before the next one starts.
- Until every worker was ready once, one that refuses to start ends the whole start
  (`started` fails); afterwards it is tried again for ever, with growing pauses.
- Fleet snapshots reach every worker, a new one through Hello. Learned prefixes are hints.
- A worker that serves and says nothing for SILENT_LOOKS looks in a row hangs, and is killed. Looks
  are counted, not time: this process, stopped or starved, looks once when it goes on.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec

from tokenlane.channel import messages
from tokenlane.channel.ends import SupervisorEnd
from tokenlane.channel.messages import Explain, Up
from tokenlane.config.keyring import environment
from tokenlane.config.secret import REPLICA_KEY_VARIABLE
from tokenlane.config.settings import Key, Settings
from tokenlane.control.stall_log import StallLog
from tokenlane.control.waits import set_within
from tokenlane.control.worker_process import WorkerProcess
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import FleetState
from tokenlane.telemetry.load_board import SharedBoard
from tokenlane.telemetry.metrics.exposition import Totals
from tokenlane.telemetry.metrics.segment import create_segment

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
STEADY_S = 10.0
START_TRIES = 3
EXPLAIN_DEADLINE_S = 10.0
RELOAD_DEADLINE_S = 10.0
LOOK_PERIOD_S = 1.0
SILENT_LOOKS = 30

log = logging.getLogger("workers")


@dataclass(eq=False)
class WorkerPool:
    """All workers. `argv`: the command that becomes a worker, to which the channel's descriptor is
    added. keys: of clients; None where all may come in. `address`: host and port to serve
    on. on_news: told the worker's number and each message that is not about the workers themselves.
    started: done once all were ready, or failed with ConfigError. stalls: what the workers told of
    theirs."""

    argv: Sequence[str]
    settings: Settings
    address: tuple[str, int]
    board_fd: int
    totals: Totals
    _: KW_ONLY
    fleet: Callable[[], FleetState]
    keys: tuple[Key, ...] | None
    on_news: Callable[[int, Up], None]

    def __post_init__(self) -> None:
        self._board = SharedBoard(self.board_fd, None)
        self._draining = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stalls = StallLog()
        self.workers = [WorkerProcess(number) for number in range(self.settings.server.workers)]
        self.clean = True
        self._asked: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._questions = 0
        # By worker, what it says to the latest Reload.
        self._reloads: dict[int, asyncio.Future[str]] = {}
        self._reload = 0

    def start(self) -> None:
        """Starts all workers and keeps them running from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(worker), name=f"worker-{worker.number}")
            for worker in self.workers
        ]
        loop.call_later(LOOK_PERIOD_S, self._look)

    def publish(self, state: FleetState) -> None:
        """Sends a snapshot to every worker."""
        for worker in self.workers:
            if worker.end is not None:
                worker.end.send(messages.FleetUpdate(state))

    async def reload(self, settings: Settings, keys: tuple[Key, ...] | None) -> list[str]:
        """Tells every worker, and those that come; why some do not want it, in sentences.
        Returns when all that serve have answered, or not within RELOAD_DEADLINE_S: a worker that
        is slow gets there, for nothing that it was told is lost."""
        self.settings, self.keys = settings, keys
        self._reload += 1
        loop = asyncio.get_running_loop()
        asked = self._reloads = {}
        for worker in self.workers:
            if worker.end is not None:
                if worker.state == "ready":
                    asked[worker.number] = loop.create_future()
                worker.end.send(messages.Reload(self._reload, settings, keys))
        if asked:
            await asyncio.wait(asked.values(), timeout=RELOAD_DEADLINE_S)
        for number, answer in asked.items():
            if not answer.done():
                log.warning("worker %d has not said yet that it has the new settings", number)
        return sorted({one.result() for one in asked.values() if one.done()} - {""})

    async def explain(self, question: Explain) -> tuple[int, bytes]:
        """Asks the ready worker that said something last, for one may hang, where a request would
        go: status and JSON body. TimeoutError if it does not say, ConnectionError if there is
        none."""
        ready = [worker for worker in self.workers if worker.state == "ready"]
        end = min(ready, key=lambda one: one.silent_looks).end if ready else None
        if end is None:
            raise ConnectionError("no worker is ready")
        self._questions += 1
        number = self._questions
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            end.send(msgspec.structs.replace(question, number=number))
            async with asyncio.timeout(EXPLAIN_DEADLINE_S):
                return await answer
        finally:
            del self._asked[number]

    def drain(self) -> None:
        """Tells every worker to finish and exit; none is started again."""
        self._draining.set()
        for worker in self.workers:
            if worker.end is not None:
                worker.state = "draining"
                worker.end.send(messages.Drain())

    def kill(self) -> None:
        """Ends every worker at once, with whatever is in flight."""
        self._draining.set()
        for worker in self.workers:
            if worker.process is not None and worker.process.returncode is None:
                self.clean = False
                worker.process.send_signal(signal.SIGKILL)

    async def ended(self) -> None:
        """Waits until no worker is left. Only after `drain` or `kill`."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks)
            for task in done:
                task.result()

    def _look(self) -> None:
        """Ends those that hang: their share of the new connections would hang for ever."""
        if self._draining.is_set():
            return
        asyncio.get_running_loop().call_later(LOOK_PERIOD_S, self._look)
        for worker in self.workers:
            worker.silent_looks += 1
            if worker.state != "ready" or worker.silent_looks != SILENT_LOOKS:
                continue
            log.error(
                "worker %d hangs: it has said nothing for %.0f s, and is killed",
                worker.number, SILENT_LOOKS * LOOK_PERIOD_S,
            )  # fmt: skip
            if worker.process is not None and worker.process.returncode is None:
                worker.process.kill()

    async def _keep(self, worker: WorkerProcess) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._draining.is_set():
            worker.starts += 1
            began = time.monotonic()
            try:
                code = await self._live(worker)
            except OSError as error:
                log.error("worker %d cannot be started (%s)", worker.number, error.strerror)  # noqa: TRY400 - the sentence says it all
                code = -1
            except Exception:
                log.exception("worker %d cannot be started", worker.number)
                code = -1
            self.totals.retire(worker.number)
            self._board.clear(worker.number)
            if self._draining.is_set():
                self.clean = self.clean and code == 0
                break
            if not self.started.done() and self._hopeless(worker):
                break
            if time.monotonic() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.warning(
                "worker %d ended (code %d); starting it again in %.1f s",
                worker.number, code, pause_s,
            )  # fmt: skip
            if not await set_within(self._draining, pause_s):
                pause_s = min(pause_s * 2, LAST_PAUSE_S)

    def _hopeless(self, worker: WorkerProcess) -> bool:
        """Fails the start if this worker said why it cannot, or has died too often."""
        if worker.reason is not None:
            self.started.set_exception(ConfigError(worker.reason))
        elif worker.starts >= START_TRIES:
            self.started.set_exception(
                ConfigError("a worker dies at its start; its last words are above")
            )
        else:
            return False
        return True

    async def _live(self, worker: WorkerProcess) -> int:
        """One process from start to end; its exit code, negative for a signal."""
        worker.reason = None
        ours, theirs = socket.socketpair()
        metrics_fd = create_segment()
        fds = (theirs.fileno(), metrics_fd, self.board_fd)
        try:
            self.totals.adopt(worker.number, metrics_fd)
            process = await asyncio.create_subprocess_exec(
                *self.argv,
                str(theirs.fileno()),
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
                env=environment(REPLICA_KEY_VARIABLE),
                # A Ctrl-C at the terminal is the supervisor's to interpret.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(metrics_fd)
        worker.process, worker.pid, worker.state = process, process.pid, "starting"
        end = SupervisorEnd(lambda message: self._received(worker, message))
        try:
            await end.attach(ours)
            host, port = self.address
            hello = messages.Hello(
                worker=worker.number,
                settings=self.settings,
                metrics_fd=metrics_fd,
                board_fd=self.board_fd,
                fleet=self.fleet(),
                host=host,
                port=port,
                keys=self.keys,
            )
            # No await beyond this point: what changes after Hello must find this end in place.
            end.send(hello)
            worker.end = end
            if self._draining.is_set():
                end.send(messages.Drain())
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            worker.state, worker.end, worker.process, worker.pid = "dead", None, None, 0
            said = self._reloads.get(worker.number)
            if said is not None and not said.done():
                said.set_result("")  # its successor begins with them
            end.close()

    def _received(self, worker: WorkerProcess, message: Up) -> None:
        worker.silent_looks = 0
        match message:
            case messages.WorkerReady(doubts):
                worker.doubts = doubts
                if worker.state == "starting":
                    worker.state = "ready"
                all_ready = all(other.state == "ready" for other in self.workers)
                if all_ready and not self.started.done():
                    self.started.set_result(None)
            case messages.Failed(reason):
                worker.reason = reason
                if self.started.done():
                    log.error("worker %d cannot start: %s", worker.number, reason)
            case messages.Learned():
                self.on_news(worker.number, message)
                for other in self.workers:
                    if other is not worker and other.end is not None:
                        other.end.offer(message)
            case messages.Reloaded(number, reason):
                said = self._reloads.get(worker.number)
                if said is not None and number == self._reload and not said.done():
                    said.set_result(reason)
            case messages.Explained(number, status, body):
                asked = self._asked.get(number)
                if asked is not None and not asked.done():
                    asked.set_result((status, body))
            case messages.Stalled(stall):
                self.stalls.stalled(stall)
            case messages.Beats(lateness):
                self.stalls.beats(worker.number, lateness)
            case _:
                self.on_news(worker.number, message)
