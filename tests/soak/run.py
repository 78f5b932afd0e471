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
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil

from tests.soak.audit import Books, Kill, problems
from tests.soak.clients import Crowd
from tests.soak.fleet import Replicas, tokenizer_folder
from tests.soak.process import PATIENCE_S, Footprint, Gateway
from tests.soak.report import Report
from tokenlane.config.settings import (
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

WORKERS = 2
INDEX_BLOCKS = 2_000
# Two generations, each with what a block costs in sets and runs (tokenlane.routing.generation).
INDEX_LIMIT_BYTES_PER_REPLICA = 2 * INDEX_BLOCKS * WORKERS * 200
CACHE_BYTES = 20_000_000
# Clients that fill the encoder's memories, of each size of prompts: what the loop encodes itself,
# and what its threads do, in each of the two workers.
FILLING, FILLING_WORDS, THREADS = 8, (60, 800, 6_000), 2 * WORKERS
# The loop's encoder remembers 40 MB of longer words for good, in three times the room: prompts of
# one such word, twice as many as fill it, on many connections, as a worker may get few of them.
LONG_LETTERS, LONG_TURNS, LONG_REQUESTS = 3_000, 10, 340
# Rounds of longest words from each of those clients: eight of a kind for each thread, on average.
STRETCHING = 4
# What the gateway counts of its own memory.
ACCOUNT = "tokenlane_memory_bytes"


def settings(urls: tuple[str, ...], folder: Path, hasty: float) -> Settings:
    """Small bounds and short deadlines, so that all of them are met."""
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
        tokens=TokenSettings(
            folders={"demo": str(tokenizer_folder())}, processes=1, cache_limit_bytes=CACHE_BYTES
        ),
        routing=RoutingSettings(index_limit_blocks=INDEX_BLOCKS),
        health=HealthSettings(ejection_s=1.0, ejection_limit_s=5.0, slow_start_s=2.0),
        log=LogSettings(access=str(folder / "access.log"), format="json", sample_ratio=1.0),
    )


class Soak:
    """`await Soak(folder, for_s).run()`. for_s: seconds of load. hasty: everything happens so many
    times as often. words: that the encoder's memory takes for each thread; it is filled with so
    many before the load begins."""

    def __init__(
        self,
        folder: Path,
        for_s: float,
        *,
        replicas: int = 4,
        hasty: float = 1.0,
        seed: int = 1,
        words: int = 0,
    ) -> None:
        self._words = words
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
                    *self._not_reloaded(gateway),
                    *crowd.wrong,
                ]
                counted = _counted(gateway, "tokenlane_requests_total")
                shed = _counted(gateway, "tokenlane_shed_requests_total", "accept-queue")
                await asyncio.to_thread(gateway.stop)
                if code := await asyncio.to_thread(gateway.process.wait, PATIENCE_S):
                    report.problems.append(f"the gateway's exit code is {code}")
        lines = (self._folder / "access.log").read_text(encoding="utf-8").splitlines()
        ran = replicas.executions.read_text(encoding="utf-8").splitlines()
        executions = Counter(line.split()[1] for line in ran)
        written = [*map(json.loads, lines)]
        books = Books(crowd.asked, written, executions, self._kills, counted, shed)
        report.outcomes.update(one.outcome for one in crowd.asked)
        report.problems += problems(books)
        report.problems += report.histories(books)
        (self._folder / "report.json").write_bytes(msgspec.json.encode(report))
        return report

    async def _warm_up(self, crowd: Crowd) -> None:
        """Every kind of client, so that what is made once is there."""
        kinds = [kind() for kind in crowd.usual() if kind != crowd.talks]
        await asyncio.gather(crowd.burst(20), *kinds)
        await asyncio.gather(
            *[
                crowd.fills(size, THREADS * self._words // size // FILLING)
                for size in FILLING_WORDS
                for _ in range(FILLING)
            ]
        )
        if self._words:
            for _ in range(LONG_TURNS):
                turn = [crowd.fills(1, LONG_REQUESTS, LONG_LETTERS) for _ in range(FILLING)]
                await asyncio.gather(*turn)
            await asyncio.gather(*[crowd.stretches(STRETCHING) for _ in range(FILLING)])

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
            (8.0, lambda: self._reload(gateway)),
        ]
        loop = asyncio.get_running_loop()
        loop.call_later(self._for_s, self._over.set)
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

    async def _reload(self, gateway: Gateway) -> None:
        if self._draw.random() < 0.25:
            gateway.reload(gateway.given[:-1])
            self._report.disturbed("broken settings")
            return
        settings = msgspec.json.decode(gateway.given)
        settings["admission"]["concurrency_limit_count"] = self._draw.randint(36, 44)
        settings["routing"]["alpha"] = self._draw.uniform(0.5, 1.5) * settings["routing"]["alpha"]
        settings["health"]["ejection_s"] = self._draw.uniform(0.5, 1.5)
        gateway.reload(msgspec.json.encode(settings))
        self._report.disturbed("reload")

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
            held = await asyncio.to_thread(gateway.samples)
            counted = sum(value for (name, _), value in held.items() if name == ACCOUNT)
            point = time.monotonic() - began_s, int(counted)
            self._report.memory.setdefault(ACCOUNT, []).append(point)

        await self._again(3.0, measure)

    def _not_reloaded(self, gateway: Gateway) -> list[str]:
        """Files of settings that were taken for what they are not, or not at all."""
        told = gateway.status()["config"]["reloads"]
        said = []
        for outcome, kind in (("refused", "broken settings"), ("applied", "reload")):
            count, written = told[outcome], self._report.happened[kind]
            # One that is soon replaced may not have been looked at.
            if count > written or (not count and written > 5):
                said.append(f"{count} reloads were {outcome}, of {written} to be")
        return said

    def _over_caps(self, gateway: Gateway) -> list[str]:
        """What holds more than it may."""
        samples, limits = gateway.samples(), dict[tuple[str, tuple[tuple[str, str], ...]], float]()
        for name, labels in samples:
            if name == "tokenlane_memory_limit_bytes":
                limits["tokenlane_memory_bytes", labels] = samples[name, labels]
            if name == "tokenlane_access_log_dropped_total":
                limits[name, labels] = 0.0
        for part in ("own", "events", "pending"):
            limits["tokenlane_memory_bytes", (("part", f"index-{part}"),)] = float(
                INDEX_LIMIT_BYTES_PER_REPLICA * self._replicas
            )
        return [
            f"{name}{dict(labels)} is {samples[name, labels]:.0f}, more than {limit:.0f}"
            for (name, labels), limit in limits.items()
            if samples.get((name, labels), 0.0) > limit
        ]


def _counted(gateway: Gateway, counter: str, reason: str = "") -> int:
    """Requests by a counter of the gateway. reason: of those that have one."""
    return int(
        sum(
            value
            for (name, labels), value in gateway.samples().items()
            if name == counter and (not reason or ("reason", reason) in labels)
        )
    )
