"""What one engine counts, as vLLM counts it.

Invariants:
- Counters only grow; a restarted replica starts with new ones.
- Cache queries and hits are counted when a sequence starts, tokens and times when it ends; an
  aborted sequence counts no times and no success (vLLM 0.32).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence as Row
from typing import Protocol

import msgspec

_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class Finished(Protocol):
    """The counts of a sequence that ended."""

    prompt_tokens: int
    produced: int
    finish: str
    queued_s: float
    started_s: float
    first_token_s: float
    ended_s: float


class Counts(msgspec.Struct):
    """Counts since the replica started, of tokens where not said otherwise."""

    sequences: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    rejected: int = 0


class SimulatedHistogram:
    """Counts by upper bound, the last one infinite. text: its help."""

    def __init__(self, text: str, bounds: Row[float]) -> None:
        self.text = text
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def token_bounds(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, ... up to `most`."""
    bounds = (float(step * 10**power) for power in range(len(str(most))) for step in (1, 2, 5))
    return tuple(bound for bound in bounds if bound <= most)


class EngineStats:
    """One replica's counters since it started. finished: sequences, by the reason. histograms: by
    their names."""

    def __init__(self, max_model_tokens: int) -> None:
        self.counts = Counts()
        self.finished: Counter[str] = Counter()
        tokens = token_bounds(max_model_tokens)
        kinds = (
            ("request_prompt_tokens", "Prefill tokens.", tokens),
            ("request_generation_tokens", "Generation tokens.", tokens),
            ("time_to_first_token_seconds", "Time to first token.", _TTFT_S),
            ("request_time_per_output_token_seconds", "Time per token.", _TOKEN_S),
            ("e2e_request_latency_seconds", "End to end latency.", _LATENCY_S),
            ("request_queue_time_seconds", "Time in WAITING.", _LATENCY_S),
            ("request_prefill_time_seconds", "Time in PREFILL.", _LATENCY_S),
            ("request_decode_time_seconds", "Time in DECODE.", _LATENCY_S),
        )
        self.histograms = {name: SimulatedHistogram(text, bounds) for name, text, bounds in kinds}

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a sequence that got its blocks."""
        counts = self.counts
        counts.sequences += 1
        counts.queried_tokens += prompt_tokens
        counts.hit_tokens += cached_tokens
        counts.prefilled_tokens += prompt_tokens - cached_tokens

    def completed(self, sequence: Finished) -> None:
        """Count a sequence that finished."""
        self.finished[sequence.finish] += 1
        self.counts.generated_tokens += sequence.produced
        decode_s = sequence.ended_s - sequence.first_token_s
        observed = {
            "request_prompt_tokens": sequence.prompt_tokens,
            "request_generation_tokens": sequence.produced,
            "time_to_first_token_seconds": sequence.first_token_s - sequence.queued_s,
            "e2e_request_latency_seconds": sequence.ended_s - sequence.queued_s,
            "request_queue_time_seconds": sequence.started_s - sequence.queued_s,
            "request_prefill_time_seconds": sequence.first_token_s - sequence.started_s,
            "request_decode_time_seconds": decode_s,
        }
        if sequence.produced > 1:
            per_token_s = decode_s / (sequence.produced - 1)
            observed["request_time_per_output_token_seconds"] = per_token_s
        for name, value in observed.items():
            self.histograms[name].observe(value)
