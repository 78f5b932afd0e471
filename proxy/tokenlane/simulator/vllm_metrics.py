"""A replica's /metrics, with vLLM's names and labels.

Invariants:
- Built from the engine's own counts when it is scraped: nothing is counted twice.
- Two labels everywhere, engine and model_name, as a server with one engine has them.
"""

from collections.abc import Iterator

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
        yield self._gauge("num_requests_running", "Requests in execution batches.", engine.running)
        yield self._gauge("num_requests_waiting", "Requests waiting.", engine.waiting)
        usage = 0.0
        if settings.cache_blocks is not None:
            usage = engine.cache.used_blocks / settings.cache_blocks
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.", usage)
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
        stats = self._engine.stats
        rows = (
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.queried_tokens),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.hit_tokens),
            ("num_preemptions", "Preemptions.", 0),
            ("prompt_tokens", "Prefill tokens processed.", stats.queried_tokens),
            ("prompt_tokens_cached", "Prompt tokens found in a cache.", stats.hit_tokens),
            ("generation_tokens", "Generation tokens processed.", stats.generated_tokens),
        )
        for name, text, value in rows:
            family = CounterMetricFamily(f"vllm:{name}", text, labels=self._labels)
            family.add_metric(self._values, value)
            yield family
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
        rejected.add_metric((self._values[1], "max_num_queued_reqs"), stats.rejected)
        yield rejected

    def _histograms(self) -> Iterator[Metric]:
        stats = self._engine.stats
        rows = (
            ("request_prompt_tokens", "Prefill tokens.", stats.prompt_tokens),
            ("request_generation_tokens", "Generation tokens.", stats.output_tokens),
            ("time_to_first_token_seconds", "Time to first token.", stats.ttft_s),
            ("request_time_per_output_token_seconds", "Time per token.", stats.token_s),
            ("e2e_request_latency_seconds", "End to end latency.", stats.latency_s),
            ("request_queue_time_seconds", "Time in WAITING.", stats.queue_s),
            ("request_prefill_time_seconds", "Time in PREFILL.", stats.prefill_s),
            ("request_decode_time_seconds", "Time in DECODE.", stats.decode_s),
        )
        for name, text, histogram in rows:
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=self._labels)
            family.add_metric(self._values, _buckets(histogram), histogram.total)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=self._labels)
        family.add_metric(self._values, value)
        return family


def _buckets(histogram: SimulatedHistogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
    return buckets


def exposition(engine: Engine, started_s: float) -> bytes:
    """Return the scrape, in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(engine, started_s))
    return generate_latest(registry)
