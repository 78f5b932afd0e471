"""What so many clients got, and which processes spent the CPU meanwhile.

Invariants:
- The first answer of each client is left out: all were asked at once, which no client did later.
- The rate is that of the answers after the last of those, so that a queue that still fills up
  flatters nobody.
- Only whole answers with 200 are in rates and latencies; the rest is counted as failed.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Protocol, TypeVar

import msgspec

from bench.loads.closed_loop import Call, Plan, Result
from bench.tools.processes import BenchError, machine_used_s, module
from bench.tools.statistics import quantile

Measured = TypeVar("Measured")


class Spender(Protocol):
    """Something whose CPU is counted: a process, or a part of a server."""

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has had."""


class Served(msgspec.Struct, frozen=True):
    """Of a run. cores: CPU seconds a second by spender, the load generator's as `load`, and what
    nobody named here spent of the machine as `others`.

    settled: the calls that are counted, those after each client's first.
    """

    per_s: float | None
    p50_ms: float | None
    p99_ms: float | None
    failed: int
    cores: dict[str, float]
    calls: list[Call]
    settled: list[Call]

    @property
    def answered(self) -> list[Call]:
        """All calls that were answered whole with 200."""
        return [call for call in self.calls if call.served]


def settled(calls: list[Call]) -> tuple[list[Call], float | None]:
    """Return the calls that ended after every client had its first answer, those aside, and how
    many of them were served in a second."""
    full_s = max((call.done_s for call in calls if not call.turn), default=0.0)
    later = [call for call in calls if call.turn and call.done_s > full_s]
    span_s = max((call.done_s for call in later), default=full_s) - full_s
    count = sum(call.served for call in later)
    return later, count / span_s if span_s > 0 else None


def served(result: Result, cores: dict[str, float]) -> Served:
    """Return what a run says."""
    later, per_s = settled(result.calls)
    spent_ms = [(call.done_s - call.began_s) * 1e3 for call in later if call.served]
    return Served(
        per_s=per_s,
        p50_ms=quantile(spent_ms, 0.5),
        p99_ms=quantile(spent_ms, 0.99),
        failed=sum(not call.served for call in result.calls),
        cores=cores | {"load": result.cpu_s / result.wall_s},
        calls=result.calls,
        settled=later,
    )


def drive(plan: Plan, spenders: Mapping[str, Spender]) -> Served:
    """Run a plan in a process of its own. Raise BenchError where nothing was answered well."""
    before_s = _spent_s(spenders)
    machine_s, began_s = machine_used_s(), time.monotonic()
    # To a file: a pipe's end was seen to come before all of a large result.
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(
            module("bench.loads.closed_loop"), input=msgspec.msgpack.encode(plan), stdout=out,
            stderr=subprocess.PIPE, check=False, timeout=plan.limit_s + 120.0,
        )  # fmt: skip
        out.seek(0)
        made = out.read()
    if done.returncode:
        raise BenchError(f"the load generator failed: {done.stderr.decode()[-1000:]}")
    result = msgspec.msgpack.decode(made, type=Result)
    wall_s = result.wall_s
    spent_s = {name: now_s - before_s[name] for name, now_s in _spent_s(spenders).items()}
    others_s = machine_used_s() - machine_s - sum(spent_s.values()) - result.cpu_s
    cores = {name: one_s / wall_s for name, one_s in spent_s.items()}
    # The generator's own start and end are in this, so it is of all that time.
    cores["others"] = max(0.0, others_s) / (time.monotonic() - began_s)
    if not any(call.served for call in result.calls):
        statuses = sorted({call.status for call in result.calls})
        raise BenchError(
            f"no request was answered whole with 200, but with {statuses or 'nothing'}"
        )
    return served(result, cores)


def _spent_s(spenders: Mapping[str, Spender]) -> dict[str, float]:
    return {name: one.cpu_s() for name, one in spenders.items()}


def others_remark(runs: Iterable[Served]) -> str:
    """Return what else the machine did meanwhile, on average and at most."""
    shares = [one.cores["others"] for one in runs]
    return (
        f"other processes took {sum(shares) / len(shares):.2f} cores of the machine on average, "
        f"{max(shares):.2f} at most"
    )


def better(before: Served | None, now: Served) -> Served:
    """Return the run with fewer failures, of two with as many the one with the higher rate: what
    else a machine does makes a run slower only."""
    if before is None:
        return now
    ours, theirs = ((-one.failed, one.per_s or 0.0) for one in (now, before))
    return now if ours > theirs else before


def in_time(
    what: Sequence[Measured],
    rounds: int,
    limit_s: float,
    *,
    least: int = 0,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[Measured]:
    """Yield all that is to be measured so many times, but nothing later than `limit_s` after the
    start: on a slow machine an experiment ends with what it has. least: yielded in any case."""
    until_s = now_s() + limit_s
    for done, one in enumerate(chain.from_iterable(repeat(what, rounds))):
        if done >= least and now_s() >= until_s:
            return
        yield one


def warm(port: int, path: str, bodies: list[bytes]) -> None:
    """Send each body once, so that whoever caches knows it."""
    drive(Plan(port, path, bodies, clients=4, seconds_s=0.0, once=True), {})
