"""Counts that others keep: what is added to the metrics is their growth."""

import os

from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.tokens.caches.lru import CacheCounts
from tokenlane.worker.gauges import CacheGrowth


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
        families.CACHE_BYTES: 100,
        families.CACHE_EVICTIONS: 5,
        families.CACHE_HITS: 50,
        families.CACHE_MISSES: 1,
    }
    assert written == wanted
