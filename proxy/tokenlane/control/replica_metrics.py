"""A replica's `/metrics` in the few numbers that routing needs. Pure.

Invariants:
- Unknown, missing and malformed samples are None or zero, never an error: replicas of other
  versions stay usable.
- Only the lines wanted are looked at: prometheus_client's parser takes some 50 times as long for
  a real page of 60 kB, once a second and replica.
- Whatever the page, the time it takes grows with its length alone, and the numbers fit a message.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

import msgspec

_START = "process_start_time_seconds"
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_USAGE = "vllm:kv_cache_usage_perc"
_CONFIG = "vllm:cache_config_info"
_QUERIED = "vllm:prefix_cache_queries_total"
_HIT = "vllm:prefix_cache_hits_total"
_CPU = "process_cpu_seconds_total"
_FIRST = "vllm:time_to_first_token_seconds_"
_QUEUED_S = "vllm:request_queue_time_seconds_sum"
_PREFILL = "vllm:request_prefill_time_seconds_"
_ITERATIONS = "vllm:iteration_tokens_total_count"

_SAMPLE = re.compile(
    rf"^({_START}|{_RUNNING}|{_WAITING}|{_USAGE}|{_CONFIG}|{_QUERIED}|{_HIT}|{_CPU}|{_QUEUED_S}"
    rf"|{_ITERATIONS}|{_FIRST}(?:sum|count)|{_PREFILL}(?:sum|count))"
    r"(?:\{(.{0,8192})\})?[ \t]+(\S+)",
    re.MULTILINE,
)
# In a label's value quotes are escaped: what is found is a label. More digits are no count. What
# stands before it is looked at behind it: a pattern that begins with a word is searched for fast.
_BLOCK_TOKENS, _CACHE_BLOCKS = (
    re.compile(rf'{label}(?<!\w{label})="0*([1-9][0-9]{{0,8}})"')
    for label in ("block_size", "num_gpu_blocks")
)
# Hundreds of engines' worth. A page of more lines, each 20 to 50 ns, is nothing but short ones.
_SAMPLES_LIMIT_COUNT = 10_000
_LINES_LIMIT_COUNT = 100_000
# Beyond it floats are no exact counts.
_MOST = 2.0**53


class Scrape(msgspec.Struct, frozen=True):
    """What `/metrics` said, summed over the engines of a replica (data parallel ranks).

    started_s: Unix time, 0 if unknown. kv_usage: mean over the engines, 0..1. queried_tokens,
    hit_tokens: prompt tokens looked up in the prefix cache and found there, since it started. Also
    since then: cpu_s: CPU time of the process that answers; first_tokens, first_token_s: requests
    that got their first token, and how long all of these took; finished, engine_s: requests that
    ended, and their time in the engine's queue and in prefill; prefill_s: in prefill alone;
    iterations: of the engines. at_s: of the look, monotonic.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    block_tokens: int | None = None
    cache_blocks: int | None = None
    started_s: float = 0.0
    queried_tokens: float = 0.0
    hit_tokens: float = 0.0
    cpu_s: float = 0.0
    first_tokens: float = 0.0
    first_token_s: float = 0.0
    finished: float = 0.0
    engine_s: float = 0.0
    prefill_s: float = 0.0
    iterations: float = 0.0
    at_s: float = 0.0


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    if text.count("\n") > _LINES_LIMIT_COUNT:
        return
    for found in islice(_SAMPLE.finditer(text), _SAMPLES_LIMIT_COUNT):
        name, labels, number = found.groups("")
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value <= _MOST:
            yield name, labels, value


def parse_scrape(text: str, at_s: float = 0.0) -> Scrape:
    """Reads an exposition page (Prometheus text format). at_s: when it was."""
    sums: dict[str, float] = defaultdict(float)
    usages: list[float] = []
    started_s = 0.0
    block_tokens: int | None = None
    cache_blocks: int | None = None
    for name, label_text, value in _samples(text):
        if name == _USAGE:
            usages.append(value)
        elif name == _START:
            started_s = value
        elif name != _CONFIG:
            sums[name] += value
        else:
            if block_tokens is None and (found := _BLOCK_TOKENS.search(label_text)):
                block_tokens = int(found[1])
            if found := _CACHE_BLOCKS.search(label_text):
                cache_blocks = (cache_blocks or 0) + int(found[1])
    return Scrape(
        running=int(min(sums[_RUNNING], _MOST)),
        waiting=int(min(sums[_WAITING], _MOST)),
        kv_usage=sum(usages) / len(usages) if usages else 0.0,
        block_tokens=block_tokens,
        cache_blocks=cache_blocks,
        started_s=started_s,
        queried_tokens=sums[_QUERIED],
        hit_tokens=sums[_HIT],
        cpu_s=sums[_CPU],
        first_tokens=sums[_FIRST + "count"],
        first_token_s=sums[_FIRST + "sum"],
        finished=sums[_PREFILL + "count"],
        engine_s=sums[_QUEUED_S] + sums[_PREFILL + "sum"],
        prefill_s=sums[_PREFILL + "sum"],
        iterations=sums[_ITERATIONS],
        at_s=at_s,
    )
