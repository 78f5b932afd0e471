"""A replica's /metrics, with vLLM's names and labels.

Invariants:
- Built from the engine's own counts when it is scraped: nothing is counted twice.
- Two labels everywhere, engine and model_name, as a server with one engine has them.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from tokenlane.simulator.engine import Engine
from tokenlane.simulator.stats import SimulatedHistogram

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_FINISHES = ("stop", "length", "abort", "error", "repetition")


class _Collector:
    """Reads one engine. started_s: its start, seconds since the epoch."""

    def __init__(self, engine: Engine, started_s: float) -> None:
        self._engine = engine
        self._started_s = started_s
        self._labels = ("engine", "model_name")
        self._values = ("0", engine.settings.model)

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterator[Metric]:
        engine, settings = self._engine, self._engine.settings
        usage = 0.0
        if settings.cache_blocks is not None:
            usage = engine.cache.used_blocks / settings.cache_blocks
        for name, text, value in (
            ("num_requests_running", "Requests in execution batches.", engine.running),
            ("num_requests_waiting", "Requests waiting.", engine.waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.", usage),
        ):
            yield self._family(GaugeMetricFamily, name, text, value)
        config = {
            "block_size": str(settings.block_tokens),
            "enable_prefix_caching": "True",
            "engine": "0",
            "num_gpu_blocks": str(settings.cache_blocks),
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the CacheConfig", labels=tuple(config)
        )
        info.add_metric(tuple(config.values()), 1)
        yield info
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            value=self._started_s,
        )

    def _counters(self) -> Iterator[Metric]:
        stats, counts = self._engine.stats, self._engine.stats.counts
        for name, text, value in (
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", counts.queried_tokens),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", counts.hit_tokens),
            ("num_preemptions", "Preemptions.", 0),
            ("prompt_tokens", "Prefill tokens processed.", counts.queried_tokens),
            ("prompt_tokens_cached", "Prompt tokens found in a cache.", counts.hit_tokens),
            ("generation_tokens", "Generation tokens processed.", counts.generated_tokens),
        ):
            yield self._family(CounterMetricFamily, name, text, value)
        success = CounterMetricFamily(
            "vllm:request_success",
            "Successfully processed requests.",
            labels=(*self._labels, "finished_reason"),
        )
        for reason in _FINISHES:
            success.add_metric((*self._values, reason), stats.finished[reason])
        yield success
        rejected = CounterMetricFamily(
            "vllm:admission_rejections",
            "Admission attempts rejected by a queue limit, by reason.",
            labels=("model_name", "reason"),
        )
        rejected.add_metric((self._values[1], "max_num_queued_reqs"), counts.rejected)
        yield rejected

    def _histograms(self) -> Iterator[Metric]:
        for name, made in self._engine.stats.histograms.items():
            yield self._family(HistogramMetricFamily, name, made.text, _buckets(made), made.total)

    def _family(self, kind: Any, name: str, text: str, *value: Any) -> Metric:
        family = kind(f"vllm:{name}", text, labels=self._labels)
        family.add_metric(self._values, *value)
        return family  # type: ignore[no-any-return]


def _buckets(histogram: SimulatedHistogram) -> list[tuple[str, float]]:
    """Return how many values each bound is an upper one of."""
    names = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True))


def exposition(engine: Engine, started_s: float) -> bytes:
    """Return the scrape, in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(engine, started_s))
    return generate_latest(registry)
