"""One soak: a gateway in front of tests.soak.fleet, under everybody of tests.soak.clients, with
its workers and tokenizer processes killed meanwhile.

Invariants:
- Worker 0 is never killed: its memory is what the slope is taken of.
- Whatever happens, no process is left behind.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from proxy.settings import (
    AdminSettings,
    AdmissionSettings,
    HealthSettings,
    LogSettings,
    RoutingSettings,
    ServerSettings,
    Settings,
    TokenSettings,
    UpstreamSettings,
)
from proxy.tokens.tokenizer import demo_folder
from tests.soak.audit import Books, Kill, problems
from tests.soak.clients import Crowd
from tests.soak.fleet import Replicas
from tests.soak.process import PATIENCE_S, Footprint, Gateway

WORKERS = 2
INDEX_BLOCKS = 2_000
# Two generations, each with what a block costs in sets and runs (proxy.routing.generation).
INDEX_LIMIT_BYTES_PER_REPLICA = 2 * INDEX_BLOCKS * WORKERS * 200
CACHE_BYTES = 4_000_000
_CACHES = ("cache", "segment", "opening", "prefix")
_MB = 1e6
# What happened so long before or after a request ended is told with it.
_AROUND_S = 5.0


def settings(urls: tuple[str, ...], folder: Path, hasty: float) -> Settings:
    """Small bounds and short deadlines, so that all of them are met."""
    caches: dict[str, Any] = {f"{name}_limit_bytes": CACHE_BYTES for name in _CACHES}
    return Settings(
        backends=urls,
        server=ServerSettings(port=0, workers=WORKERS, write_stall_deadline_s=5.0),
        admin=AdminSettings(port=0),
        upstream=UpstreamSettings(
            first_byte_deadline_s=max(1.0, 3.0 / hasty),
            between_chunks_deadline_s=max(1.0, 3.0 / hasty),
            idle_deadline_s=1.0 / hasty,
        ),
        admission=AdmissionSettings(
            concurrency_limit_count=40, queue_limit_count=40, queue_deadline_s=1.0
        ),
        tokens=TokenSettings(folders={"demo": str(demo_folder())}, processes=1, **caches),
        routing=RoutingSettings(index_limit_blocks=INDEX_BLOCKS),
        health=HealthSettings(ejection_s=1.0, ejection_limit_s=5.0, slow_start_s=2.0),
        log=LogSettings(access=str(folder / "access.log"), format="json", sample_ratio=1.0),
    )


@dataclass
class Report:
    """What a soak found. problems: in sentences. happened: disturbances by kind. log: the same, by
    time (monotonic seconds). memory: seconds and bytes by process. said: by the processes, of
    themselves, at rest before and after."""

    problems: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    log: list[tuple[float, str]] = field(default_factory=list)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def disturbed(self, what: str) -> None:
        """Notes a disturbance that is over, or has begun."""
        self.happened[what] += 1
        self.log.append((time.monotonic(), what))

    def growth_mb(self, name: str) -> float:
        """Of a process's memory in the later two thirds, by Theil and Sen's median of slopes."""
        points = self.memory[name]
        points = points[len(points) // 3 :]
        points = points[:: max(1, len(points) // 200)]
        slopes = [
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for number, earlier in enumerate(points)
            for later in points[number + 1 :]
        ]
        if not slopes:
            return 0.0
        return statistics.median(slopes) * (points[-1][0] - points[0][0]) / _MB


class Soak:
    """`await Soak(folder, for_s).run()`. for_s: seconds of load. hasty: everything happens so many
    times as often."""

    def __init__(
        self,
        folder: Path,
        for_s: float,
        *,
        replicas: int = 4,
        hasty: float = 1.0,
        seed: int = 1,
    ) -> None:
        self._folder = folder
        self._for_s = for_s
        self._replicas = replicas
        self._hasty = hasty
        self._draw = random.Random(seed)
        self._kills: list[Kill] = []
        self._report = Report()
        self._over = asyncio.Event()

    async def run(self) -> Report:
        """The whole of it."""
        report = self._report
        with Replicas(self._replicas, self._folder) as replicas:
            made = settings(replicas.urls, self._folder, self._hasty)
            with Gateway(made, self._folder) as gateway:
                crowd = Crowd(gateway.port, self._draw.getrandbits(32), self._hasty)
                await self._warm_up(crowd)
                base = await self._at_rest(gateway)
                await self._under_load(gateway, replicas, crowd)
                last = await self._at_rest(gateway, base)
                report.said = {"first": base.said, "last": last.said}
                report.problems += [
                    *last.above(base),
                    *gateway.unfinished(),
                    *gateway.errors(len(self._kills)),
                    *self._over_caps(gateway),
                    *crowd.wrong,
                ]
                counted = _counted(gateway)
                gateway.process.send_signal(signal.SIGTERM)
                if code := await asyncio.to_thread(gateway.process.wait, PATIENCE_S):
                    report.problems.append(f"the gateway's exit code is {code}")
        lines = (self._folder / "access.log").read_text(encoding="utf-8").splitlines()
        ran = replicas.executions.read_text(encoding="utf-8").splitlines()
        executions = Counter(line.split()[1] for line in ran)
        books = Books(crowd.asked, [*map(json.loads, lines)], executions, self._kills, counted)
        report.outcomes.update(one.outcome for one in crowd.asked)
        report.problems += problems(books)
        report.problems += self._histories(books)
        (self._folder / "report.json").write_bytes(msgspec.json.encode(report))
        return report

    async def _warm_up(self, crowd: Crowd) -> None:
        """Every kind of client, so that what is made once is there."""
        kinds = [kind() for kind in crowd.usual() if kind != crowd.talks]
        await asyncio.gather(crowd.burst(20), *kinds)

    async def _at_rest(self, gateway: Gateway, base: Footprint | None = None) -> Footprint:
        """When nothing is in hand any more and, with `base`, there is no more than then; or after
        some patience."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            await asyncio.sleep(0.3)
            late = time.monotonic() > deadline_s
            if not all(gateway.pids()) or (gateway.unfinished() and not late):
                continue
            now = await asyncio.to_thread(Footprint.of, gateway)
            if late or base is None or not now.above(base):
                return now

    async def _under_load(self, gateway: Gateway, replicas: Replicas, crowd: Crowd) -> None:
        async def misbehave() -> None:
            self._report.disturbed(await replicas.misbehave(self._draw))

        disturbances: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (1.0, misbehave),
            (12.0, lambda: self._kill_worker(gateway)),
            (5.0, lambda: self._hit_tokenizer(gateway)),
            (15.0, lambda: self._burst(crowd)),
        ]
        asyncio.get_running_loop().call_later(self._for_s, self._over.set)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(crowd.run(crowd.usual()))
            for every_s, disturb in disturbances:
                group.create_task(self._again(every_s, disturb))
            group.create_task(self._measure(gateway))
            await self._over.wait()
            crowd.stopping = True
            await asking

    async def _again(self, every_s: float, disturb: Callable[[], Awaitable[None]]) -> None:
        while not self._over.is_set():
            pause_s = self._draw.uniform(0.5, 1.5) * every_s / self._hasty
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
                    return
            await disturb()

    async def _kill_worker(self, gateway: Gateway) -> None:
        kill = await asyncio.to_thread(gateway.kill_worker, 1)
        if kill is not None:
            self._kills.append(kill)
            self._report.disturbed("worker killed")

    async def _hit_tokenizer(self, gateway: Gateway) -> None:
        found = await asyncio.to_thread(gateway.tokenizers)
        if not found:
            return
        victim = self._draw.choice(found)
        with contextlib.suppress(psutil.NoSuchProcess):
            if self._draw.random() < 0.5:
                victim.kill()
                self._report.disturbed("tokenizer killed")
            else:
                victim.suspend()
                self._report.disturbed("tokenizer stopped")
                await asyncio.sleep(1.0 / self._hasty)
                victim.resume()

    async def _burst(self, crowd: Crowd) -> None:
        self._report.disturbed("burst")
        await crowd.burst(150)

    async def _measure(self, gateway: Gateway) -> None:
        first = await asyncio.to_thread(gateway.pids)
        watched = {
            "supervisor": psutil.Process(gateway.process.pid),
            "worker": psutil.Process(first[0]),
        }
        began_s = time.monotonic()

        async def measure() -> None:
            for name, process in watched.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    point = time.monotonic() - began_s, process.memory_info().rss
                    self._report.memory.setdefault(name, []).append(point)

        await self._again(3.0, measure)

    def _histories(self, books: Books) -> list[str]:
        """Of the requests that problems name: what every book has of them, and what went on."""
        named = set(re.findall(r"soak-\d+", "".join(self._report.problems)))
        told = []
        for asked in books.asked:
            if asked.id not in named:
                continue
            lines = [line for line in books.lines if line["request_id"] == asked.id]
            end_s = asked.ended_s or asked.sent_s
            went_on = [
                f"{what} {at_s - end_s:+.3f} s"
                for at_s, what in self._report.log
                if abs(at_s - end_s) < _AROUND_S
            ]
            kills = [
                f"{kill.since_s - end_s:+.3f} to {kill.at_s - end_s:+.3f} s"
                for kill in self._kills
                if abs(kill.at_s - end_s) < _AROUND_S
            ]
            told.append(
                f"{asked}; ran {books.executions[asked.id]} times; written {lines}; from its end:"
                f" kills {kills}, disturbances {went_on}"
            )
        return told

    def _over_caps(self, gateway: Gateway) -> list[str]:
        """What holds more than it may."""
        limits = {
            "tokenlane_index_bytes": INDEX_LIMIT_BYTES_PER_REPLICA * self._replicas,
            "tokenlane_token_cache_bytes": WORKERS * CACHE_BYTES,
            "tokenlane_access_log_dropped_total": 0,
        }
        return [
            f"{name}{dict(labels)} is {value:.0f}, more than {limits[name]}"
            for (name, labels), value in gateway.samples().items()
            if name in limits and value > limits[name]
        ]


def _counted(gateway: Gateway) -> int:
    """Requests by the gateway's counter."""
    return int(
        sum(
            value
            for (name, _), value in gateway.samples().items()
            if name == "tokenlane_requests_total"
        )
    )
