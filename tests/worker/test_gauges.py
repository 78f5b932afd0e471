"""Counts that others keep: what is added to the metrics is their growth."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from tests.raw import Upstream, answering, ok, post, until
from tests.support import gateway, listener, replicas
from tests.telemetry.log.test_access_log import entry
from tokenlane.config.settings import LogSettings
from tokenlane.runtime.accept_queue import look
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.worker import gauges as worker_gauges
from tokenlane.worker.gauges import Gauges, LineGrowth, write_accepts, write_cache


async def test_what_the_kernel_holds_and_drops_is_written() -> None:
    descriptor = create_segment()
    segment, reader = MetricsSegment(descriptor), SegmentReader(descriptor)
    os.close(descriptor)

    def written() -> list[float]:
        return [
            values[0]
            for family, _, values in reader.samples()
            if family in (families.ACCEPT_QUEUE, families.ACCEPT_DROPS)
        ]

    with contextlib.ExitStack() as held, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        assert written() == [0, 0]
        for _ in range(5):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        await until(lambda: look(listener).dropped >= 3)
        for _ in range(2):
            write_accepts(segment, listener)
        waiting, dropped = written()
        assert waiting == 2
        assert 3 <= dropped <= look(listener).dropped
    reader.close()


def test_a_cache_is_written_by_its_growth() -> None:
    descriptor = create_segment()
    segment, reader = MetricsSegment(descriptor), SegmentReader(descriptor)
    os.close(descriptor)
    for evictions in (3, 3, 5):
        write_cache(segment, "segment", CacheCounts(2, 100, evictions * 10, 1, evictions))
    written = {
        family: cells[0] for family, labels, cells in reader.samples() if labels == ("segment",)
    }
    reader.close()
    wanted: dict[Family, float] = {
        families.CACHE_ENTRIES: 2,
        families.CACHE_EVICTIONS: 5,
        families.CACHE_HITS: 50,
        families.CACHE_MISSES: 1,
    }
    assert written == wanted


def test_lines_are_counted_that_the_last_log_writes_when_it_is_closed(tmp_path: Path) -> None:
    descriptor = create_segment()
    segment, reader = MetricsSegment(descriptor), SegmentReader(descriptor)
    os.close(descriptor)
    growth = LineGrowth(segment, None, families.ACCESS_LINES, families.ACCESS_DROPPED)
    for name in ("a", "b", "c"):
        log = AccessLog(LogSettings(access=str(tmp_path / name)), 0)
        for _ in range(100):
            log.offer(entry())
        growth.follow(log)
        growth.follow(None)  # the order of a reload: what was queued is written afterwards
        log.close()
    growth.write()
    written = sum(
        cells[0] for family, _, cells in reader.samples() if family is families.ACCESS_LINES
    )
    reader.close()
    assert written == 300
    assert sum(len((tmp_path / name).read_text().splitlines()) for name in "abc") == 300


async def test_the_labels_of_a_replica_that_left_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_gauges, "KEPT_S", 1e-9)  # gone since the last look is gone for long
    async with (
        Upstream(answering(ok())) as one,
        Upstream(answering(ok())) as other,
        gateway(one.url, other.url) as bench,
    ):
        accepting = listener()
        gauges = Gauges(
            bench.recorder._segment,
            bench.gateway, bench.server, None, None, accepting, bench.recorder.forget,
        )  # fmt: skip
        ids = [url.removeprefix("http://") for url in (one.url, other.url)]

        async def ask() -> list[float]:
            """Requests at each replica, after some more."""
            for _ in range(8):
                await bench.ask(post("/v1/completions", b'{"model":"demo","prompt":"a"}'))
            return [bench.metric(families.REPLICA_REQUESTS, "demo", id_) for id_ in ids]

        gauges.sample()
        assert sum(await ask()) == 8
        bench.gateway.update(replicas([one.url]))
        gauges.sample()
        before = bench.metric(families.REPLICA_REQUESTS, "demo", ids[0])
        assert await ask() == [before + 8, 0]
        assert bench.metric(families.LEFT_OUT, ids[1]) == 0
        assert bench.metric(families.REQUESTS, "/v1/completions", "200", "ok", "demo") == 16
        accepting.close()
