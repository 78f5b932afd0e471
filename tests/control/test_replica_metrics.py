"""Scrapes: the numbers routing needs, out of whatever a replica exports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from tokenlane.control.replica_metrics import Scrape, parse_scrape

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="4096"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="4000"} 1.0
process_start_time_seconds 1.79521108384e+09
"""

CACHE_PAGE = """\
vllm:prefix_cache_queries_total{engine="0"} 900
vllm:prefix_cache_queries_total{engine="1"} 100
vllm:prefix_cache_hits_total{engine="0"} 250
vllm:prefix_cache_hits_created{engine="0"} 1.7e9
"""


TIMES_PAGE = """\
process_cpu_seconds_total 57.66
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 5.0
vllm:time_to_first_token_seconds_count{engine="0"} 20.0
vllm:time_to_first_token_seconds_count{engine="1"} 3.0
vllm:time_to_first_token_seconds_sum{engine="0"} 4.5
vllm:request_queue_time_seconds_count{engine="0"} 22.0
vllm:request_queue_time_seconds_sum{engine="0"} 0.25
vllm:request_prefill_time_seconds_count{engine="0"} 22.0
vllm:request_prefill_time_seconds_sum{engine="0"} 1.5
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_count{engine="0"} 40.0
vllm:iteration_tokens_total_count{engine="1"} 2.0
vllm:iteration_tokens_total_sum{engine="0"} 900.0
"""

TIMES = Scrape(
    cpu_s=57.66, first_tokens=23, first_token_s=4.5, finished=22, engine_s=1.75, prefill_s=1.5,
    iterations=42,
)  # fmt: skip


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (TIMES_PAGE, TIMES),
        (PAGE, Scrape(6, 3, 0.5, 32, 8096, 1795211083.84)),
        ("", Scrape()),
        (CACHE_PAGE, Scrape(queried_tokens=1000, hit_tokens=250)),
        ("vllm:num_requests_running 7\n", Scrape(running=7)),
        ("vllm:num_requests_running 7 1795211083000\n", Scrape(running=7)),
        ("  vllm:num_requests_running 7\n# vllm:num_requests_running 8\n", Scrape()),
        ("vllm:num_requests_running NaN\n", Scrape()),
        ("vllm:num_requests_running +Inf\n", Scrape()),
        ("vllm:num_requests_running what\n", Scrape()),
        ("vllm:num_requests_running{\n", Scrape()),
        ('vllm:cache_config_info{block_size="None",num_gpu_blocks=""} 1\n', Scrape()),
        ('vllm:cache_config_info{block_size="0",num_gpu_blocks="-1"} 1\n', Scrape()),
        ('vllm:cache_config_info{a="}\\" x",block_size="16"} 1\n', Scrape(block_tokens=16)),
        ('vllm:cache_config_info{block_size="\u00b2"} 1\n', Scrape()),
        (f'vllm:cache_config_info{{block_size="{"9" * 5000}"}} 1\n', Scrape()),
        (
            'vllm:cache_config_info{a=",block_size=\\"8\\"",num_gpu_blocks="07"} 1\n',
            Scrape(cache_blocks=7),
        ),
        ("vllm:num_requests_running 1e308\n" * 3, Scrape()),
        ("vllm:num_requests_running -1\n", Scrape()),
        ("vllm:num_requests_running 9007199254740992\n" * 9999, Scrape(running=2**53)),
        ("process_start_time_seconds_other 5\n", Scrape()),
    ],
)
def test_page(page: str, expected: Scrape) -> None:
    assert parse_scrape(page) == expected


def test_what_prometheus_client_writes_is_read() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_waiting", "x", ["model_name"], registry=registry)
    gauge.labels('odd "name"\\ {with} 1 everything').set(12)
    assert parse_scrape(generate_latest(registry).decode()).waiting == 12


@given(st.text(alphabet='vllm:num_requests_running{}=",\\ 0123.eE+-\n', max_size=200))
def test_no_page_raises(page: str) -> None:
    parse_scrape(page)
    parse_scrape(PAGE + page)


def test_a_page_of_very_many_lines_says_nothing() -> None:
    """Each takes its time, also an empty one."""
    page = "vllm:num_requests_running 3\n"
    assert parse_scrape(page).running == 3
    assert parse_scrape(page + 100_000 * "\n") == Scrape()
