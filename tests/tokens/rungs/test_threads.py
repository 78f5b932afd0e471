"""The pool: two lanes, bounded counts, and no job lost or done twice."""

import asyncio
import ctypes
import os
import platform
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import ClassVar

import psutil
import pytest

from tests.raw import until
from tests.support import demo_tokenizer
from tokenlane.prompt import Prompt
from tokenlane.runtime import cpu_scheduling
from tokenlane.tokens import encoder_threads
from tokenlane.tokens.encoder_threads import EncoderExecutor
from tokenlane.tokens.job import Tokenized, TokenJob
from tokenlane.tokens.rungs.threads import ThreadPool, default_count


class Job(TokenJob):
    """One that does nothing, once it is let: what it would do is not the pool's business."""

    def __init__(self, size_bytes: int = 10, *, held: bool = False) -> None:
        self.key = b"key"
        self.size_bytes = size_bytes
        self.tenant = ""
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.thread = ""
        self.nice = 0
        self.runs = 0
        if not held:
            self.go_on.set()

    def advance(self, slice_s: float) -> Tokenized | None:
        self.runs += 1
        self.thread = threading.current_thread().name
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)
        self.begun.set()
        assert self.go_on.wait(20)
        return Tokenized(Prompt((), b"", 16, 0), None, 0.001)


class Bad(Job):
    """One that fails in a way nobody foresaw."""

    def advance(self, slice_s: float) -> Tokenized | None:
        raise ZeroDivisionError


class Panic(BaseException):
    """What an extension module raises when its own code panics."""


class Panicking(Job):
    def advance(self, slice_s: float) -> Tokenized | None:
        raise Panic


@asynccontextmanager
async def pool_of(count: int) -> AsyncIterator[tuple[ThreadPool, list[Job]]]:
    """A pool, and the jobs whose results it handed on."""
    heard: list[Job] = []

    def on_done(job: TokenJob, result: Tokenized | None) -> None:
        assert isinstance(job, Job)
        if result is not None:
            heard.append(job)

    pool = ThreadPool(count, on_done)
    yield pool, heard
    assert (pool.queued_jobs, pool.queued_bytes) == (0, 0)
    assert pool.wait_s(1.0, short=True) == pool.wait_s(1.0, short=False) == pytest.approx(0.0)
    pool.close()
    for thread in pool._threads.values():
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("short", [False, True])
async def test_jobs_come_back(count: int, short: bool) -> None:
    async with pool_of(count) as (pool, heard):
        jobs = [Job() for _ in range(20)]
        done = await asyncio.gather(*(pool.submit(job, 0.001, short=short) for job in jobs))
        assert all(one.queue_s >= 0.0 for one in done)
        assert {job.runs for job in jobs} == {1}
        assert len(heard) == 20


async def test_what_waits_is_counted() -> None:
    async with pool_of(2) as (pool, _):
        held = Job(100, held=True)
        futures = [pool.submit(held, 0.5, short=False), pool.submit(Job(30), 0.25, short=False)]
        assert (pool.queued_jobs, pool.queued_bytes) == (2, 130)
        # One thread of two takes short jobs only.
        assert pool.wait_s(1.0, short=False) == 0.75
        assert pool.wait_s(1.0, short=True) == 0.0
        # Pieces interleave: it is done before the longer of the two.
        assert pool.wait_s(0.1, short=False) == pytest.approx(0.2)
        futures.append(pool.submit(Job(1), 0.002, short=True))
        await futures[-1]
        held.go_on.set()
        await asyncio.gather(*futures)


@pytest.mark.parametrize("count", [2, 4])
async def test_a_short_job_does_not_wait_for_long_ones(count: int) -> None:
    async with pool_of(count) as (pool, _):
        long = [Job(held=True) for _ in range(count + 2)]
        futures = [pool.submit(job, 1.0, short=False) for job in long]
        await until(lambda: sum(job.begun.is_set() for job in long) == count - 1)
        for _ in range(5):
            short = Job()
            await pool.submit(short, 0.001, short=True)
            assert short.thread == "tokenize-0"
        assert sum(job.begun.is_set() for job in long) == count - 1
        for job in long:
            job.go_on.set()
        await asyncio.gather(*futures)
        assert "tokenize-0" not in {job.thread for job in long}


async def test_the_other_threads_take_short_jobs_first() -> None:
    async with pool_of(2) as (pool, heard):
        first, busy, later, short = Job(held=True), Job(held=True), Job(), Job()
        futures = [pool.submit(first, 1.0, short=False)]
        await until(first.begun.is_set)
        futures.append(pool.submit(busy, 0.001, short=True))
        await until(busy.begun.is_set)
        futures.append(pool.submit(later, 1.0, short=False))
        futures.append(pool.submit(short, 0.001, short=True))
        first.go_on.set()
        await futures[3]
        await futures[2]
        assert heard.index(short) < heard.index(later)
        assert short.thread == "tokenize-1"
        busy.go_on.set()
        await asyncio.gather(*futures)


async def test_nobody_waits_any_more() -> None:
    async with pool_of(2) as (pool, heard):
        running, queued = Job(held=True), Job()
        futures = [pool.submit(job, 0.1, short=False) for job in (running, queued)]
        await until(running.begun.is_set)
        for future in futures:
            future.cancel()
        running.go_on.set()
        await until(lambda: pool.queued_jobs == 0)
        # The one that ran is finished and its result kept; the other never began.
        assert heard == [running]
        assert (running.runs, queued.runs) == (1, 0)


async def test_an_unforeseen_failure_reaches_its_waiter_and_costs_no_thread() -> None:
    async with pool_of(2) as (pool, heard):
        for _ in range(5):
            for short in (True, False):
                with pytest.raises(ZeroDivisionError):
                    await asyncio.wait_for(pool.submit(Bad(), 0.1, short=short), 10)
                with pytest.raises(RuntimeError, match="Panic"):
                    await asyncio.wait_for(pool.submit(Panicking(), 0.1, short=short), 10)
        await pool.submit(Job(), 0.1, short=False)
        assert len(heard) == 1


async def test_closing_lets_running_jobs_end() -> None:
    async with pool_of(2) as (pool, heard):
        job = Job(held=True)
        future = pool.submit(job, 0.1, short=False)
        await until(job.begun.is_set)
        pool.close()
        job.go_on.set()
        await future
        assert heard == [job]


def test_a_loop_that_is_gone_is_no_error() -> None:
    async def start() -> tuple[Job, ThreadPool]:
        pool = ThreadPool(2, lambda *_: None)
        job = Job(held=True)
        pool.submit(job, 0.1, short=False)
        await until(job.begun.is_set)
        return job, pool

    job, pool = asyncio.run(start())
    job.go_on.set()
    pool.close()
    for thread in pool._threads.values():
        thread.join(10)
        assert not thread.is_alive()


def test_default_count() -> None:
    assert 2 <= default_count() <= 8


class Sliced(Job):
    """One of several slices, which says whose turn it was."""

    def __init__(self, name: str, slices: int, turns: list[str]) -> None:
        super().__init__()
        self.name, self.left, self.turns = name, slices, turns

    def advance(self, slice_s: float) -> Tokenized | None:
        self.turns.append(self.name)
        self.left -= 1
        return super().advance(slice_s) if not self.left else None


async def test_slices_of_different_jobs_interleave() -> None:
    async with pool_of(1) as (pool, heard):
        turns: list[str] = []
        first = Job(held=True)
        waiting = [pool.submit(first, 0.25, short=False)]
        await asyncio.to_thread(first.begun.wait, 10)
        for name in ("long", "longer", "brief"):
            slices = {"long": 3, "longer": 4, "brief": 1}[name]
            waiting.append(pool.submit(Sliced(name, slices, turns), 0.25, short=False))
        first.go_on.set()
        await asyncio.gather(*waiting)
        assert turns == [
            "long",
            "longer",
            "brief",
            "long",
            "longer",
            "long",
            "longer",
            "longer",
        ]
        assert len(heard) == 4


@pytest.mark.skipif(
    platform.system() != "Linux" or os.sched_getscheduler(0) != os.SCHED_OTHER,
    reason="only Linux's usual policy is asked for a smaller share",
)
async def test_its_threads_stand_back() -> None:
    loop_nice = os.getpriority(os.PRIO_PROCESS, 0)
    async with pool_of(2) as (pool, _):
        jobs = [Job(), Job()]
        await asyncio.gather(*(pool.submit(job, 0.001, short=job is jobs[0]) for job in jobs))
        assert [job.nice for job in jobs] == [min(loop_nice + cpu_scheduling.HELPER_NICE, 19)] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == loop_nice


class Encoding(Job):
    """A job that encodes words that nobody has seen before. seen_in: the threads of all."""

    seen_in: ClassVar[set[threading.Thread]] = set()
    words: ClassVar[tuple[int, int]] = (1, 100_000)

    def advance(self, slice_s: float) -> Tokenized | None:
        self.seen_in.add(threading.current_thread())
        count, letters = self.words
        text = " ".join("".join(random.choices("abcdefghij", k=letters)) for _ in range(count))
        demo_tokenizer().encode(text, add_special_tokens=False)
        return super().advance(slice_s)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize(
    ("words", "limit_chars"), [((1, 100_000), 500_000), ((10_000, 9), 62_500)], ids=str
)
async def test_no_thread_remembers_too_many_words(
    short: bool, words: tuple[int, int], limit_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_threads, "LIMIT_CHARS", limit_chars)
    monkeypatch.setattr(Encoding, "words", words)
    Encoding.seen_in.clear()
    async with pool_of(2) as (pool, heard):
        for _ in range(20):
            await pool.submit(Encoding(), 0.1, short=short)
        assert len(heard) == 20
        assert len(pool._threads) == 2
    # Each thread has at most three such texts.
    assert len(Encoding.seen_in) >= 6


async def test_a_thread_that_cannot_be_replaced_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_threads, "LIMIT_CHARS", 1_000)
    Encoding.seen_in.clear()

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with pool_of(1) as (pool, heard):
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            for _ in range(3):
                await asyncio.wait_for(pool.submit(Encoding(), 0.1, short=False), 10)
        assert len(Encoding.seen_in) == 1
        await pool.submit(Encoding(), 0.1, short=False)
        await pool.submit(Encoding(), 0.1, short=False)
        assert len(heard) == 5
    assert len(Encoding.seen_in) == 2


class Remembering(Job):
    """One whose thread remembers 100 MB, and leaves a block in every thousand for good."""

    kept = threading.local()
    stays: ClassVar[list[bytes]] = []

    def advance(self, slice_s: float) -> Tokenized | None:
        blocks = [bytes(1000) for _ in range(100_000)]
        self.stays.extend(blocks[::1000])
        self.kept.blocks = blocks
        encoder_threads.remember(encoder_threads.LIMIT_CHARS + 1)
        return super().advance(slice_s)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the C library keeps to itself what it has",
)
async def test_what_a_thread_remembered_goes_back_to_the_kernel() -> None:
    process = psutil.Process()
    async with pool_of(1) as (pool, _):
        await pool.submit(Remembering(), 0.1, short=False)
        full_bytes = process.memory_info().rss
        await until(lambda: process.memory_info().rss < full_bytes - 80_000_000)
    Remembering.stays.clear()


async def test_an_executor_changes_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_threads, "LIMIT_CHARS", 1_000_000)
    executor = EncoderExecutor(1, "test")
    Encoding.seen_in.clear()
    for _ in range(12):
        await executor.run(partial(Encoding().advance, 1.0))
    assert len(Encoding.seen_in) >= 4
    with pytest.raises(ZeroDivisionError):
        await executor.run(lambda: 1 // 0)
