"""What a scrape says: sums over workers, and nothing goes back when one dies."""

import os
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.departures import SHOWN_S
from tokenlane.telemetry.metrics.exposition import HIDDEN_S, Exposition, Totals
from tokenlane.telemetry.metrics.segment import MetricsSegment, Sample, create_segment


def segment_of(totals: Totals, worker: int) -> MetricsSegment:
    descriptor = create_segment()
    totals.adopt(worker, descriptor)
    segment = MetricsSegment(descriptor)
    os.close(descriptor)
    return segment


def scrape(totals: Totals, control: list[Sample] | None = None) -> dict[str, float]:
    text = Exposition(totals, lambda: control or []).text().decode()
    samples = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


def test_workers_are_summed_and_a_restart_takes_nothing_back() -> None:
    totals = Totals()
    first, second = segment_of(totals, 0), segment_of(totals, 1)
    for segment, count in ((first, 3), (second, 4)):
        segment.counter(families.RETRIES, "refused").inc(count)
        segment.gauge(families.CONNECTIONS).set(count)
        segment.histogram(families.DURATION, "/v1/completions").observe(0.003)
    at_first = scrape(totals)
    assert at_first["tokenlane_retries_total{reason=refused}"] == 7
    assert at_first["tokenlane_connections{}"] == 7
    assert at_first["tokenlane_request_duration_seconds_count{route=/v1/completions}"] == 2

    totals.retire(0)
    without = scrape(totals)
    assert without["tokenlane_retries_total{reason=refused}"] == 7
    assert without["tokenlane_connections{}"] == 4

    again = segment_of(totals, 0)
    again.counter(families.RETRIES, "refused").inc()
    assert scrape(totals)["tokenlane_retries_total{reason=refused}"] == 8


def test_a_restart_that_was_not_announced_still_keeps_the_counts() -> None:
    totals = Totals()
    segment_of(totals, 0).counter(families.RETRIES, "x").inc(5)
    segment_of(totals, 0).counter(families.RETRIES, "x").inc()
    assert scrape(totals)["tokenlane_retries_total{reason=x}"] == 6


def test_many_deaths_take_no_memory() -> None:
    totals = Totals()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        segment_of(totals, 0).counter(families.RETRIES, "x").inc()
    assert scrape(totals)["tokenlane_retries_total{reason=x}"] == 50
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    assert len(totals._retired) < 2 * len(families.FAMILIES)


def test_histogram_buckets_are_cumulative() -> None:
    totals = Totals()
    stall = segment_of(totals, 0).histogram(families.LOOP_STALL, "0")
    for value in (0.00005, 0.0003, 0.0003, 0.3, 5.0):
        stall.observe(value)
    got = scrape(totals)
    name = "tokenlane_loop_stall_seconds_bucket"
    assert got[f"{name}{{le=0.0001,worker=0}}"] == 1
    assert got[f"{name}{{le=0.0005,worker=0}}"] == 3
    assert got[f"{name}{{le=0.5,worker=0}}"] == 4
    assert got[f"{name}{{le=1.0,worker=0}}"] == 4
    assert got[f"{name}{{le=+Inf,worker=0}}"] == 5
    assert got["tokenlane_loop_stall_seconds_count{worker=0}"] == 5


def test_overflow_is_shown_only_when_used() -> None:
    totals = Totals()
    segment = segment_of(totals, 0)
    assert "tokenlane_retries_total{reason=other}" not in scrape(totals)
    segment.counter(families.RETRIES, "other").inc()
    assert scrape(totals)["tokenlane_retries_total{reason=other}"] == 1


def test_a_bound_child_is_shown_before_its_first_count() -> None:
    totals = Totals()
    segment_of(totals, 0).counter(families.BAILS, "queue-full")
    assert scrape(totals)["tokenlane_tokenize_bails_total{reason=queue-full}"] == 0


def test_control_samples_join() -> None:
    got = scrape(Totals(), [(families.REPLICA_UP, ("127.0.0.1:1",), [1.0])])
    assert got["tokenlane_replica_up{replica=127.0.0.1:1}"] == 1


def test_hostile_label_values_are_escaped() -> None:
    totals = Totals()
    segment_of(totals, 0).counter(families.RETRIES, 'a"b\\c\nd').inc()
    assert scrape(totals)['tokenlane_retries_total{reason=a"b\\c\nd}'] == 1


def test_a_label_that_departed_is_not_shown_and_may_come_back() -> None:
    totals = Totals()
    one = {("replica", "b"), ("model", "m")}
    both = one | {("replica", "a")}
    a, b = (f"tokenlane_replica_requests_total{{model=m,replica={name}}}" for name in "ab")
    totals.follow(both, 0.0)
    for replica in "ab":
        segment_of(totals, 0).counter(families.REPLICA_REQUESTS, "m", replica).inc(3)
    segment = segment_of(totals, 0)
    segment.counter(families.REPLICA_REQUESTS, "m", "a").inc(4)
    totals.follow(one, SHOWN_S - 1)
    assert (scrape(totals)[a], scrape(totals)[b]) == (7, 3)
    totals.follow(one, SHOWN_S)
    assert a not in scrape(totals)
    totals.retire(0)  # a worker that died before it gave it up
    assert a not in scrape(totals)
    assert scrape(totals)[b] == 3
    totals.follow(both, SHOWN_S + 1)
    segment_of(totals, 0).counter(families.REPLICA_REQUESTS, "m", "a").inc()
    assert scrape(totals)[a] == 1


def test_departures_are_forgotten() -> None:
    totals = Totals()
    for number in range(3000):
        totals.follow({("replica", f"r-{number}")}, float(number))
        assert len(totals._hidden_s) <= HIDDEN_S
