"""Plans for the load generator, and what its results mean. Pure but for `generate`.

A latency counts from the time at which the request was due. An answer that never came counts
with the time it was waited for: leaving it out would flatter the one that stalls. So does a
refusal, to the end of the run: its quick answer would flatter the one that refuses.
"""

import itertools
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence

import msgspec

from bench.loads.openloop import Call, Plan, Result
from bench.tools.processes import BenchError, module
from bench.tools.statistics import quantile

LATE_LIMIT_S = 0.005


class Latency(msgspec.Struct, frozen=True):
    """Of a flow. `failed` were answered whole, but not with 200; `unanswered` not whole. Both are
    in the quantiles with the time to the end of the run."""

    count: int
    failed: int
    unanswered: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None

    @property
    def unserved(self) -> int:
        """How many were not answered whole with 200."""
        return self.failed + self.unanswered


def evenly(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Due times: one in each slot of 1/rate, at a random place in it."""
    chooser = random.Random(seed)
    gap_s = 1 / rate_per_s
    return [(index + chooser.random()) * gap_s for index in range(int(rate_per_s * duration_s))]


def poisson(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Due times of a Poisson process: gaps are exponential, their variation is 1."""
    chooser = random.Random(seed)
    due_s: list[float] = []
    at_s = chooser.expovariate(rate_per_s)
    while at_s < duration_s:
        due_s.append(at_s)
        at_s += chooser.expovariate(rate_per_s)
    return due_s


def in_bursts(count: int, duration_s: int) -> list[float]:
    """Due times: `count` at the start of each second."""
    return [float(second) for second in range(duration_s) for _ in range(count)]


def waited_s(call: Call, end_s: float) -> float:
    """From due to the end of a whole answer with 200, without one to the end of the run."""
    return (call.done_s if call.served else max(call.done_s, end_s)) - call.due_s


def latency(calls: Sequence[Call], end_s: float) -> Latency:
    """Return what a run's calls of a flow waited, to the last byte of their answers."""
    values_ms = [waited_s(call, end_s) * 1e3 for call in calls]
    return Latency(
        count=len(calls),
        failed=sum(1 for call in calls if call.whole and call.status != 200),
        unanswered=sum(1 for call in calls if not call.whole),
        p50_ms=quantile(values_ms, 0.5),
        p99_ms=quantile(values_ms, 0.99),
        max_ms=max(values_ms, default=None),
    )


def silence_s(calls: Sequence[Call], end_s: float) -> float:
    """The longest time in which no request of the flow was answered, while some were due."""
    first_s = min((call.due_s for call in calls), default=0.0)
    answered = sorted(call.done_s for call in calls if call.whole)
    whole = len(answered) == len(calls)
    moments = [first_s, *answered, *([] if whole else [end_s])]
    return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)


def lateness_s(calls: Sequence[Call], share: float = 0.99) -> float:
    """How late the generator was: 99 % of the requests left no later than this."""
    return quantile([call.fired_s - call.due_s for call in calls if call.fired_s], share) or 0.0


def failure_remark(calls: Sequence[Call]) -> str | None:
    """A sentence where requests failed: how many, and how they ended."""
    failed = Counter(
        " ".join(
            [
                str(call.status or "no answer"),
                *(["cut short"] if call.status and not call.whole else []),
                *([call.code] if call.code not in {"", str(call.status)} else []),
            ]
        )
        for call in calls
        if not call.served
    )
    said = ", ".join(f"{ending}: {count}" for ending, count in failed.most_common())
    return f"{failed.total()} of {len(calls)} requests failed ({said})" if failed else None


def limit_remark(name: str, result: Result, flows: Sequence[str]) -> str | None:
    """A sentence where the generator was itself the limit for one of these flows."""
    late_s = max(lateness_s(result.calls[flow]) for flow in flows)
    share = result.cpu_s / result.wall_s
    if late_s <= LATE_LIMIT_S and share < 0.9:
        return None
    return (
        f"{name}: the load generator was at its limit (1 % of its requests left "
        f"{late_s * 1e3:.1f} ms late or more, {share:.0%} of its core)"
    )


def generate(plan: Plan, core: int) -> Result:
    """Runs the generator in its own process, on that core."""
    argv = ["taskset", "-c", str(core), *module("bench.loads.openloop")]
    # To a file: a pipe's end was seen to come before all of a large result.
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(
            argv, input=msgspec.json.encode(plan), stdout=out, stderr=subprocess.PIPE, check=False
        )
        out.seek(0)
        made = out.read()
    if done.returncode != 0:
        raise BenchError(f"the load generator failed: {done.stderr.decode()[-1000:]}")
    try:
        return msgspec.json.decode(made, type=Result)
    except msgspec.DecodeError as error:
        said = done.stderr.decode()[-1000:]
        raise BenchError(
            f"the load generator's {len(made)} bytes cannot be read: {error} {said}".rstrip()
        ) from None
