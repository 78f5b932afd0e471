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


class SimulatedHistogram:
    """Counts by upper bound, the last one infinite."""

    def __init__(self, bounds: Row[float]) -> None:
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
    """One replica's counters since it started."""

    def __init__(self, max_model_tokens: int) -> None:
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        self.sequences = 0
        self.rejected = 0
        self.finished: Counter[str] = Counter()
        tokens = token_bounds(max_model_tokens)
        self.prompt_tokens = SimulatedHistogram(tokens)
        self.output_tokens = SimulatedHistogram(tokens)
        self.ttft_s = SimulatedHistogram(_TTFT_S)
        self.token_s = SimulatedHistogram(_TOKEN_S)
        self.latency_s = SimulatedHistogram(_LATENCY_S)
        self.queue_s = SimulatedHistogram(_LATENCY_S)
        self.prefill_s = SimulatedHistogram(_LATENCY_S)
        self.decode_s = SimulatedHistogram(_LATENCY_S)

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Count a sequence that got its blocks."""
        self.sequences += 1
        self.queried_tokens += prompt_tokens
        self.hit_tokens += cached_tokens
        self.prefilled_tokens += prompt_tokens - cached_tokens

    def completed(self, sequence: Finished) -> None:
        """Count a sequence that finished."""
        self.finished[sequence.finish] += 1
        self.generated_tokens += sequence.produced
        self.prompt_tokens.observe(sequence.prompt_tokens)
        self.output_tokens.observe(sequence.produced)
        decode_s = sequence.ended_s - sequence.first_token_s
        self.ttft_s.observe(sequence.first_token_s - sequence.queued_s)
        self.latency_s.observe(sequence.ended_s - sequence.queued_s)
        self.queue_s.observe(sequence.started_s - sequence.queued_s)
        self.prefill_s.observe(sequence.first_token_s - sequence.started_s)
        self.decode_s.observe(decode_s)
        if sequence.produced > 1:
            self.token_s.observe(decode_s / (sequence.produced - 1))
