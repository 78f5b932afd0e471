"""Counts that others keep: what is added to the metrics is their growth."""

import contextlib
import os
import socket

from tests.raw import until
from tokenlane.runtime.accept_queue import look
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.worker.gauges import AcceptGrowth, CacheGrowth


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
        growth = AcceptGrowth(segment, listener)
        assert written() == [0, 0]
        for _ in range(5):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        await until(lambda: look(listener).dropped >= 3)
        for _ in range(2):
            growth.write()
        waiting, dropped = written()
        assert waiting == 2
        assert 3 <= dropped <= look(listener).dropped
    reader.close()


def test_a_cache_is_written_by_its_growth() -> None:
    descriptor = create_segment()
    growth, reader = CacheGrowth(MetricsSegment(descriptor)), SegmentReader(descriptor)
    os.close(descriptor)
    for evictions in (3, 3, 5):
        growth.write("segment", CacheCounts(2, 100, evictions * 10, 1, evictions))
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
