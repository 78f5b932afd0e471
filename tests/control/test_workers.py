"""The pool of workers, with scripted ones: real processes, real channels, no gateway."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.raw import until
from tokenlane.channel.messages import Explain, Suspect, Up
from tokenlane.config.settings import ServerSettings, Settings
from tokenlane.control.workers import SILENT_LOOKS, WorkerPool
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import FleetState, Load
from tokenlane.telemetry.load_board import SharedBoard, create_board
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.exposition import Totals

# Tells its life through Suspect messages, the only ones the pool hands on.
SCRIPT = """
import asyncio, os, sys
from tokenlane.channel.ends import WorkerEnd
from tokenlane.channel.messages import (
    Beats, Drain, Explain, Explained, Failed, FleetUpdate, Learned, Stalled, Suspect, WorkerReady,
)
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.load_board import SharedBoard
from tokenlane.telemetry.metrics.segment import MetricsSegment
from tokenlane.telemetry.stalls.stall import Stall

async def main(behaviour, descriptor):
    drained = asyncio.Event()

    def received(message):
        match message:
            case FleetUpdate(state):
                end.offer(Learned([(state.version, b"12345678", "")]))
            case Learned([(slot, _, _)]):
                end.offer(Suspect(slot))
            case Explain(headers, body, number=number) if behaviour != "deaf":
                end.send(Explained(number, 200, headers[0][1] + body))
            case Drain():
                drained.set()

    end = WorkerEnd(received, drained.set)
    hello = await end.connect(descriptor)
    MetricsSegment(hello.metrics_fd).counter(families.RETRIES, "x").inc()
    SharedBoard(hello.board_fd, hello.worker).add(0, 1, 5)
    if behaviour == "refuses":
        end.send(Failed("there is no tokenizer"))
        end.close()
        return 2
    if behaviour == "dies":
        os._exit(3)
    stall = Stall(worker=hello.worker, at_s=1.0, began_s=1.0, length_s=0.1, cause="gc")
    end.offer(Stalled(stall))
    end.offer(Beats(bytes(400)))
    end.send(WorkerReady({"m": ("why",)}))
    end.offer(Suspect(1000 + hello.worker))
    if behaviour == "deaf":
        await asyncio.Event().wait()
    await drained.wait()
    return 0

sys.exit(asyncio.run(main(sys.argv[1], int(sys.argv[2]))))
"""


class Bench:
    """A pool and what it said."""

    def __init__(self, behaviour: str, workers: int) -> None:
        self.board_fd = create_board(4, workers)
        self.board = SharedBoard(self.board_fd, None)
        self.totals = Totals()
        self.suspects: list[int] = []
        self.more = asyncio.Event()
        self.pool = WorkerPool(
            (sys.executable, "-c", SCRIPT, behaviour),
            Settings(server=ServerSettings(workers=workers)),
            ("127.0.0.1", 1),
            self.board_fd,
            self.totals,
            fleet=lambda: FleetState(1, ()),
            keys=None,
            on_news=self.on_news,
        )

    def on_news(self, worker: int, news: Up) -> None:
        if isinstance(news, Suspect):
            self.suspects.append(news.slot)
            self.more.set()

    async def until(self, enough: Callable[[list[int]], bool]) -> None:
        while not enough(self.suspects):
            self.more.clear()
            await self.more.wait()

    @property
    def retries(self) -> float:
        return sum(self.totals.cells().get((families.RETRIES.name, ("x",)), [0.0]))


@asynccontextmanager
async def running(behaviour: str, workers: int = 1) -> AsyncIterator[Bench]:
    bench = Bench(behaviour, workers)
    bench.pool.start()
    try:
        async with asyncio.timeout(20):
            yield bench
    finally:
        bench.pool.kill()
        await bench.pool.ended()
        os.close(bench.board_fd)


async def test_start_tell_and_drain() -> None:
    async with running("serves", workers=2) as bench:
        await bench.pool.started
        assert [worker.state for worker in bench.pool.workers] == ["ready", "ready"]
        assert bench.board.load(0) == Load(2, 10)
        # Each worker answers a snapshot with a Learned, which goes to the other one only.
        bench.pool.publish(FleetState(7, ()))
        await bench.until(lambda seen: seen.count(7) == 2)
        bench.pool.drain()
        assert [worker.state for worker in bench.pool.workers] == ["draining", "draining"]
        await bench.pool.ended()
        assert bench.pool.clean
        assert bench.board.load(0) == Load(0, 0)
        assert bench.retries == 2
        told = bench.pool.stalls.view()
        assert sorted(stall["worker"] for stall in told["stalls"]) == [0, 1]
        assert [(row["worker"], row["beats"]) for row in told["workers"]] == [(0, 100), (1, 100)]
        assert [worker.row()["state"] for worker in bench.pool.workers] == ["dead", "dead"]


async def test_a_start_that_fails_in_an_unforeseen_way_is_a_start_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench("serves", 1)

    def unheard_of() -> FleetState:
        raise OverflowError("no message can carry it")

    bench.pool.fleet = unheard_of
    bench.pool.start()
    async with asyncio.timeout(20):
        with pytest.raises(ConfigError, match="dies at its start"):
            await bench.pool.started
        await bench.pool.ended()
    assert "no message can carry it" in caplog.text
    os.close(bench.board_fd)


@pytest.mark.row("O12")
async def test_a_dead_worker_is_started_again_and_nothing_counted_is_lost() -> None:
    async with running("serves", workers=2) as bench:
        await bench.pool.started
        await bench.until(lambda seen: 1001 in seen)
        victim = bench.pool.workers[1]
        first = victim.pid
        os.kill(first, signal.SIGKILL)
        await bench.until(lambda seen: seen.count(1001) == 2)
        assert victim.pid not in {0, first}
        assert victim.row()["restarts"] == 1
        assert bench.retries == 3
        assert bench.board.load(0) == Load(2, 10)
        assert repr(victim).startswith("<Worker 1 ready")


@pytest.mark.row("O12")
async def test_a_worker_that_says_nothing_for_many_looks_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tokenlane.control.workers.LOOK_PERIOD_S", 3600.0)  # none but these:
    async with running("serves", workers=2) as bench:
        for _ in range(2 * SILENT_LOOKS):
            bench.pool._look()  # who starts may take its time
        await bench.pool.started
        await bench.until(lambda seen: {1000, 1001} <= set(seen))
        hangs, talks = bench.pool.workers
        pids = talks.pid, hangs.pid
        os.kill(hangs.pid, signal.SIGSTOP)
        for _ in range(SILENT_LOOKS - 1):
            bench.pool._look()
        bench.pool.publish(FleetState(2, ()))
        await until(lambda: talks.silent_looks == 0)  # it said what it learned from that
        await bench.pool.explain(Explain(((b"x", b""),), b"?"))
        assert (talks.pid, hangs.pid) == pids
        bench.pool._look()
        await bench.until(lambda seen: seen.count(1000) == 2)
        assert talks.pid == pids[0]
        assert hangs.pid not in {0, pids[1]}
        assert [worker.restarts for worker in bench.pool.workers] == [1, 0]
        assert "worker 0 hangs: it has said nothing for" in caplog.text
        assert bench.retries == 3


async def test_explanations_come_back_to_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("serves", workers=2) as bench:
        with pytest.raises(ConnectionError):
            await bench.pool.explain(Explain((), b"{}"))
        await bench.pool.started
        asked = [bench.pool.explain(Explain(((b"x", b"%d" % at),), b"?")) for at in range(20)]
        assert await asyncio.gather(*asked) == [(200, b"%d?" % at) for at in range(20)]
    monkeypatch.setattr("tokenlane.control.workers.EXPLAIN_DEADLINE_S", 0.01)
    async with running("deaf") as bench:
        await bench.pool.started
        with pytest.raises(TimeoutError):
            await bench.pool.explain(Explain(((b"x", b""),), b"?"))
        assert not bench.pool._asked


async def test_a_worker_that_cannot_start_ends_the_start() -> None:
    async with running("refuses") as bench:
        with pytest.raises(ConfigError, match="there is no tokenizer"):
            await bench.pool.started


async def test_a_worker_that_dies_at_its_start_is_tried_a_few_times() -> None:
    async with running("dies") as bench:
        with pytest.raises(ConfigError, match="dies at its start"):
            await bench.pool.started
        assert bench.pool.workers[0].starts == 3


async def test_a_program_that_is_not_there() -> None:
    async with running("serves") as bench:
        bench.pool.argv = ("/nonexistent",)
        with pytest.raises(ConfigError):
            await bench.pool.started


@pytest.mark.row("O7")
async def test_a_worker_that_does_not_drain_is_killed() -> None:
    async with running("deaf") as bench:
        await bench.pool.started
        bench.pool.drain()
        bench.pool.kill()
        await bench.pool.ended()
        assert not bench.pool.clean
