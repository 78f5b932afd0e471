"""What a metric family is, and the buckets that histograms have."""

from typing import Literal

import msgspec

from tokenlane.telemetry.metrics.departures import Labels

DEFAULT_CHILD_LIMIT = 128

_MS = 0.001
# Design: 100 µs, 500 µs, 1, 5, 10, 50, 100 ms; above them what an HF tokenizer needs for 100k+.
TOKENIZE_BUCKETS_S = (
    0.05 * _MS, 0.1 * _MS, 0.25 * _MS, 0.5 * _MS, 1 * _MS, 2.5 * _MS, 5 * _MS, 10 * _MS,
    25 * _MS, 50 * _MS, 100 * _MS, 250 * _MS, 500 * _MS, 1.0, 2.5, 5.0,
)  # fmt: skip
# 1 ms to 1 s are those of the loop-delay metrics of other gateways; finer ones come first.
STALL_BUCKETS_S = (
    0.1 * _MS, 0.5 * _MS, 1 * _MS, 5 * _MS, 10 * _MS, 25 * _MS, 50 * _MS, 100 * _MS,
    250 * _MS, 500 * _MS, 1.0,
)  # fmt: skip
STAGE_BUCKETS_S = (
    0.01 * _MS, 0.05 * _MS, 0.1 * _MS, 0.5 * _MS, 1 * _MS, 5 * _MS, 10 * _MS, 50 * _MS,
    100 * _MS, 500 * _MS, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
# OpenTelemetry's advice for gen_ai.server.time_to_first_token, .time_per_output_token and
# .request.duration, with room at the top: prompts of 100k tokens wait longer than 10 s.
TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
)  # fmt: skip
TPOT_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
DURATION_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24,
    20.48, 40.96, 81.92, 163.84,
)  # fmt: skip
TOKEN_BUCKETS = (
    16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 32768.0, 65536.0, 131072.0, 262144.0,
)  # fmt: skip

Kind = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """One family. `where`: written by the workers (data plane) or by the control plane.

    buckets: upper bounds without +Inf, ascending. child_limit: label sets one worker may make
    before new ones become `other`.
    """

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    where: Literal["worker", "control"] = "worker"
    child_limit: int = DEFAULT_CHILD_LIMIT

    @property
    def cells(self) -> int:
        """Float64 cells one child takes: a value, or a sum and one count per bucket."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1

    def has_any(self, values: tuple[str, ...], some: Labels) -> bool:
        """Return whether a child with these values has one of some labels."""
        return not some.isdisjoint(zip(self.labels, values))
