"""The threads rung: worker threads for tokenization, with a bounded queue in two lanes.

Invariants:
- A whole job (render, encode, hash) runs in the threads and comes back to the loop once. A long one
  runs in slices, and queues again behind the others after each: pieces of requests interleave.
- One thread takes short jobs only, so a short prompt never waits for a long one; the others
  take short jobs first.
- A job is owned once. When its caller is gone, a job that has not begun is dropped; one that runs
  is finished, and its result still reaches `on_done` (and so the cache).
- Counts change on the loop alone.
- A thread in which the encoder may remember too much ends, and a new one goes on.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from tokenlane.runtime import cpu_scheduling
from tokenlane.runtime.cgroup import cpu_count
from tokenlane.tokens import encoder_threads
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.rungs.tenant_bytes import TenantBytes

# Long enough that switching jobs costs little, and short enough that waiting requests do not
# notice.
_SLICE_S = 0.005


@dataclass(slots=True, eq=False)
class _Entry:
    job: TokenJob
    future: asyncio.Future[Tokenized]
    predicted_s: float
    short: bool
    queued_s: float = field(default_factory=time.perf_counter)
    queue_s: float | None = None  # until it began


class ThreadPool:
    """`count` threads. late_s: how long the result last handed back had waited for the loop.
    `on_done`: hears every job that is not counted any more on the loop, wanted or not, and its
    result; None for one that was dropped or failed."""

    def __init__(self, count: int, on_done: Callable[[TokenJob, Tokenized | None], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._closed = False
        self._short: SimpleQueue[_Entry | None] = SimpleQueue()
        self._long: SimpleQueue[_Entry | None] = SimpleQueue()
        self.count = count
        self.queued_jobs = 0
        self.queued_bytes = 0
        self.tenants = TenantBytes()
        self.late_s = 0.0
        self._short_s = 0.0
        self._long_jobs: set[_Entry] = set()
        self._thread_limit_chars = encoder_threads.LIMIT_CHARS // max(count, 1)
        self._threads: dict[int, threading.Thread] = {}
        for number in range(count):
            self._start(number)

    def _start(self, number: int) -> None:
        serve = partial(self._serve, number, only_short=number == 0 and self.count > 1)
        thread = threading.Thread(target=serve, name=f"tokenize-{number}", daemon=True)
        thread.start()
        self._threads[number] = thread

    def wait_s(self, predicted_s: float, *, short: bool) -> float:
        """Return the predicted seconds that others take from a job submitted now. Pieces
        interleave: of a longer job only as much is done before its end as it takes itself."""
        wait_s = self._short_s / self.count
        if not short:
            ahead_s = sum([min(entry.predicted_s, predicted_s) for entry in self._long_jobs])
            wait_s += ahead_s / max(self.count - 1, 1)
        return wait_s

    def submit(
        self, job: TokenJob, predicted_s: float, *, short: bool
    ) -> asyncio.Future[Tokenized]:
        """Queue a job. The ladder has checked that there is room."""
        future: asyncio.Future[Tokenized] = self._loop.create_future()
        entry = _Entry(job, future, predicted_s, short)
        self.queued_jobs += 1
        self.queued_bytes += job.size_bytes
        self.tenants.begin(job)
        if short:
            self._short_s += predicted_s
            self._short.put(entry)
            # Wakes a thread that waits for long jobs; the first thread takes the entry.
            self._long.put(None)
        else:
            self._long_jobs.add(entry)
            self._long.put(entry)
        return future

    def close(self) -> None:
        """Let the threads end after the jobs they run."""
        self._closed = True
        for _ in self._threads:
            self._short.put(None)
            self._long.put(None)

    # -- in the threads ----------------------------------------------------------------------

    def _is_replaced(self, number: int) -> bool:
        if encoder_threads.remembered_chars() <= self._thread_limit_chars:
            return False
        try:
            self._start(number)
        except RuntimeError:  # the system has no room for one now: it is tried after the next job
            return False
        encoder_threads.give_back_soon(self._loop)
        return True

    def _serve(self, number: int, *, only_short: bool) -> None:
        cpu_scheduling.stand_back()
        queue = self._short if only_short else self._long
        while not self._closed:
            entry = queue.get()
            if not only_short:
                with contextlib.suppress(Empty):
                    while (short := self._short.get_nowait()) is not None:
                        self._run(short)
                        short = None
            if entry is not None:
                self._run(entry)
            del entry  # a waiting thread must not keep a body alive
            if self._is_replaced(number):
                return

    def _run(self, entry: _Entry) -> None:
        done: Tokenized | Exception | None = None
        if entry.queue_s is not None or not entry.future.cancelled():
            if entry.queue_s is None:
                entry.queue_s = time.perf_counter() - entry.queued_s
            try:
                result = entry.job.advance(_SLICE_S)
                if result is None:
                    self._long.put(entry)
                    return
                done = result._replace(queue_s=entry.queue_s)
            except Exception as error:  # noqa: BLE001 - its waiter raises it; the thread lives on
                done = error
            except BaseException as error:  # noqa: BLE001 - a panic of the tokenizer's own code
                done = RuntimeError(f"the tokenizer failed: {type(error).__name__}")
        with contextlib.suppress(RuntimeError):  # the loop closed while the job ran
            self._loop.call_soon_threadsafe(self._finished, entry, done, time.perf_counter())

    # -- back on the loop --------------------------------------------------------------------

    def _finished(self, entry: _Entry, done: Tokenized | Exception | None, ended_s: float) -> None:
        self.late_s = time.perf_counter() - ended_s
        self.queued_jobs -= 1
        self.queued_bytes -= entry.job.size_bytes
        self.tenants.end(entry.job)
        if entry.short:
            self._short_s -= entry.predicted_s
        else:
            self._long_jobs.discard(entry)
        result = None if isinstance(done, Exception) else done
        self._on_done(entry.job, result)
        if entry.future.done():
            return
        if isinstance(done, Exception):
            entry.future.set_exception(done)
        elif done is not None:
            entry.future.set_result(done)


def default_count() -> int:
    """Return the number of usable CPUs, at least 2 and at most 8."""
    return max(2, min(8, cpu_count()))
