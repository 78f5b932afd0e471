"""The processes rung: tokenizer processes on Unix sockets, for jobs that would hold the GIL.

Invariants:
- The loop only sends and receives bytes; the target has no event loop to stall.
- A process that dies, or makes no progress in time, is killed and replaced. Its jobs move on to
  another process once, and are given up with LostError the second time: nothing waits for ever.
- A result whose caller is gone still reaches `on_done` (and so the cache).
- Counts change on the loop alone, and every job undoes its own.
"""

import asyncio
import contextlib
import logging
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from tokenlane.config.keyring import environment
from tokenlane.config.settings import TokenSettings
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.rungs import job_frames
from tokenlane.tokens.rungs.job_frames import LENGTHS, Made, Start
from tokenlane.tokens.rungs.tenant_bytes import TenantBytes

log = logging.getLogger(__name__)

_TICK_S = 0.25
# A process that answers nothing for this long, or for ten times the prediction, hangs.
_PATIENCE_S = 2.0
_PATIENCE_TIMES = 10.0
# Limits restarts of a process that cannot start.
_RESTART_DELAY_S = 1.0


class LostError(Exception):
    """Two processes died while they had the job, or none was left to take it."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A job in flight. moved: it was taken from a process that died."""

    job: TokenJob
    predicted_s: float
    future: asyncio.Future[Tokenized]
    moved: bool = False
    queued_s: float = field(default_factory=time.perf_counter)


class _Child:
    """One process: an asyncio.Protocol on our end of its socket."""

    def __init__(self, pool: "ProcessPool") -> None:
        self._pool = pool
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.entries: dict[int, _Entry] = {}
        self.outstanding_bytes = 0
        self.ready = False
        self.progress_s = time.monotonic()

    def send(self, number: int, entry: _Entry) -> None:
        """Hand a job over."""
        assert self._transport is not None
        if not self.entries:
            self.progress_s = time.monotonic()
        self.entries[number] = entry
        self.outstanding_bytes += entry.job.size_bytes
        self._transport.writelines(job_frames.asked(number, entry.job))

    def hangs(self, now_s: float) -> bool:
        """Return whether its oldest job takes far longer than it should."""
        if not self.entries:
            return False
        first = next(iter(self.entries.values()))
        patience_s = max(_PATIENCE_S, _PATIENCE_TIMES * first.predicted_s)
        return now_s - self.progress_s > patience_s

    def kill(self) -> None:
        """End the process; `connection_lost` follows."""
        if self.process is not None:
            self.process.kill()
        if self._transport is not None:
            self._transport.abort()

    # -- transport ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines(self._pool.start_frame)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= LENGTHS.size:
            head_bytes, payload_bytes = LENGTHS.unpack_from(buffer, at)
            head_at = at + LENGTHS.size
            end = head_at + head_bytes + payload_bytes
            if len(buffer) < end:
                break
            self._frame(bytes(buffer[head_at : head_at + head_bytes]))
            at = end
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.ready = False
        self._pool.lost(self)

    def pause_writing(self) -> None:
        """Do nothing: the ladder bounds outstanding bytes."""

    def resume_writing(self) -> None:
        """As above."""

    def eof_received(self) -> None:
        """Close: the process ended."""

    def _frame(self, head: bytes) -> None:
        self.progress_s = time.monotonic()
        if not self.ready:
            self.ready = True
            return
        made = msgspec.msgpack.decode(head, type=Made)
        entry = self.entries.pop(made.number)
        self.outstanding_bytes -= entry.job.size_bytes
        self._pool.finished(entry, job_frames.result(made))


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Return a tokenizer process at the other end; its end is closed here."""
    with theirs:
        argv = [sys.executable, "-m", "tokenlane.tokens.rungs.process_main", str(theirs.fileno())]
        # A new interpreter, not a fork: a fork would copy the encoder's locked mutexes.
        return subprocess.Popen(
            argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment()
        )


def _reap(spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Wait for a process that is no longer wanted to end."""
    if not spawning.cancelled() and spawning.exception() is None:
        process = spawning.result()
        process.kill()
        process.wait()


class ProcessPool:
    """`settings.processes` processes. `on_done`: hears every job that is not counted any more,
    wanted or not, and its result; None for one that was given up."""

    def __init__(
        self, settings: TokenSettings, on_done: Callable[[TokenJob, Tokenized | None], None]
    ) -> None:
        self._settings = settings
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._children: list[_Child] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._number = 0
        self.tenants = TenantBytes()
        self._turn = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.start_frame = job_frames.frame(
            Start(settings.folders, msgspec.msgpack.encode(settings))
        )
        for _ in range(settings.processes):
            self._start(0.0)
        if settings.processes:
            self._tick()

    @property
    def ready_count(self) -> int:
        """Processes that take jobs now."""
        return sum(child.ready for child in self._children)

    @property
    def outstanding_bytes(self) -> int:
        """The bytes outstanding at the process with the fewest; 0 where there is none."""
        return min((one.outstanding_bytes for one in self._children if one.ready), default=0)

    @property
    def jobs(self) -> int:
        """Jobs under way."""
        return sum(len(child.entries) for child in self._children)

    def submit(self, job: TokenJob, predicted_s: float) -> asyncio.Future[Tokenized]:
        """Hand a job to a process; raise LostError from the future. The ladder has checked that
        there is room."""
        future: asyncio.Future[Tokenized] = self._loop.create_future()
        self.tenants.begin(job)
        self._dispatch(_Entry(job, predicted_s, future))
        return future

    def close(self) -> None:
        """End the processes; jobs under way are given up."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._starting:
            task.cancel()
        for child in list(self._children):
            child.kill()

    # ----------------------------------------------------------------------------------------

    def _dispatch(self, entry: _Entry) -> None:
        ready = [child for child in self._children if child.ready]
        if not ready:
            self._give_up(entry)
            return
        if self._settings.dispatch == "round-robin":
            self._turn += 1
            chosen = ready[self._turn % len(ready)]
        else:
            pair = random.sample(ready, min(2, len(ready)))
            chosen = min(pair, key=lambda child: child.outstanding_bytes)
        self._number += 1
        chosen.send(self._number, entry)

    def finished(self, entry: _Entry, result: Tokenized) -> None:
        """Take the ids that a process made."""
        self.tenants.end(entry.job)
        self._on_done(entry.job, result)
        if not entry.future.done():
            queue_s = time.perf_counter() - entry.queued_s - result.seconds
            entry.future.set_result(result._replace(queue_s=max(0.0, queue_s)))

    def lost(self, child: _Child) -> None:
        """Move the jobs of a dead process to others, each once."""
        self._children.remove(child)
        if child.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.kill()
                child.process.wait(1.0)
        if not self._closed:
            log.warning("a tokenizer process died with %d jobs; replacing it", len(child.entries))
            self._start(_RESTART_DELAY_S if not child.ready and not child.entries else 0.0)
        for entry in child.entries.values():
            if entry.moved or self._closed or entry.future.cancelled():
                self._give_up(entry)
            else:
                entry.moved = True
                self._dispatch(entry)
        child.entries.clear()

    def _give_up(self, entry: _Entry) -> None:
        self.tenants.end(entry.job)
        self._on_done(entry.job, None)
        if not entry.future.done():
            entry.future.set_exception(LostError())

    def _start(self, delay_s: float) -> None:
        task = self._loop.create_task(self._run(delay_s))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _run(self, delay_s: float) -> None:
        """Start a process after a delay; where the system has no room for one, again later."""
        if delay_s:
            await asyncio.sleep(delay_s)
        try:
            child = await self._child()
        except OSError as error:
            log.warning("a tokenizer process could not be started: %s", error)
            self._start(_RESTART_DELAY_S)
            return
        if self._closed:
            child.kill()

    async def _child(self) -> _Child:
        ours, theirs = socket.socketpair()
        child = _Child(self)
        spawning = self._loop.run_in_executor(None, _spawn, theirs)
        try:
            # The thread finishes its job even where the caller is gone.
            child.process = await asyncio.shield(spawning)
            self._children.append(child)
            protocol = cast(asyncio.Protocol, child)
            await self._loop.create_unix_connection(lambda: protocol, sock=ours)
        except BaseException:
            ours.close()
            if child in self._children:
                self._children.remove(child)
            spawning.add_done_callback(_reap)
            raise
        return child

    def _tick(self) -> None:
        now_s = time.monotonic()
        for child in list(self._children):
            if child.ready and child.hangs(now_s):
                log.warning("a tokenizer process hangs; killing it")
                child.kill()
        self._timer = self._loop.call_later(_TICK_S, self._tick)
