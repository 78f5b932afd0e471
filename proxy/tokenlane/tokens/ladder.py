"""The ladder: which rung takes a tokenization job. Pure; the rungs themselves do the work.

A job takes the first rung that admits it, and RUNGS below is the order, by price to the loop.
(Token input and cache hits are answered before there is a job; `bail` is what is left.)

Invariants:
- Sizes are minimums for leaving the loop, never maximums: the largest prompts must not come
  back to it.
- The loop's budget is time. A size becomes a time by the speeds learned from the jobs that ran
  (CPU seconds of their thread, so a busy machine does not make prompts look longer).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from tokenlane.config.settings import TokenSettings
from tokenlane.prompt import Rung

_FIXED_S: Final = 20e-6
_FIRST_RENDER_BYTES_PER_S: Final = 50e6
_FIRST_ENCODE_BYTES_PER_S: Final = 2e6
# Handing out the ids of one call holds the GIL: 1.6 ms for 100k tokens, about 5 bytes each.
IDS_GIL_S_PER_BYTE: Final = 3.2e-9
# A job of this size changes a learned speed by a fifth; smaller ones weigh less.
_FULL_WEIGHT_BYTES: Final = 20_000
_FASTEST_BYTES_PER_S: Final = 1e9


class Speed:
    """Learned speeds of one model's render and encode, in raw prompt bytes per CPU second."""

    __slots__ = ("encode_bytes_per_s", "render_bytes_per_s")

    def __init__(self) -> None:
        self.render_bytes_per_s = _FIRST_RENDER_BYTES_PER_S
        self.encode_bytes_per_s = _FIRST_ENCODE_BYTES_PER_S

    def render_s(self, size_bytes: int) -> float:
        """Return the predicted CPU seconds of the render."""
        return _FIXED_S + size_bytes / self.render_bytes_per_s

    def encode_s(self, size_bytes: int) -> float:
        """Return the predicted CPU seconds to encode so much text, fixed cost aside."""
        return size_bytes / self.encode_bytes_per_s

    def learn_render(self, size_bytes: int, seconds: float) -> None:
        """Learn from a render of this size that took so many CPU seconds."""
        if seconds > _FIXED_S:
            rate = min(size_bytes / (seconds - _FIXED_S), _FASTEST_BYTES_PER_S)
            self.render_bytes_per_s += _weight(size_bytes) * (rate - self.render_bytes_per_s)

    def learn_encode(self, size_bytes: int, seconds: float) -> None:
        """Learn from so much text that was encoded in so many CPU seconds."""
        if seconds > 0.0:
            rate = min(size_bytes / seconds, _FASTEST_BYTES_PER_S)
            self.encode_bytes_per_s += _weight(size_bytes) * (rate - self.encode_bytes_per_s)


def _weight(size_bytes: int) -> float:
    return 0.2 * min(1.0, size_bytes / _FULL_WEIGHT_BYTES)


class JobView(NamedTuple):
    """A job as the rules see it: raw prompt bytes and predicted CPU seconds. gil_s: of those, what
    holds the GIL in one go, or nearly so. loop_late_s: how long the loop last let the result of
    another wait."""

    size_bytes: int
    render_s: float
    total_s: float
    gil_s: float = 0.0
    loop_late_s: float = 0.0


class PoolView(NamedTuple):
    """The threads as the rules see them: jobs and bytes waiting, and the CPU seconds that they
    would take from one more job like this. processes: ready ones; process_bytes: under way in the
    one that has the least."""

    threads: int
    queued_jobs: int
    queued_bytes: int
    wait_s: float
    local_busy: bool
    processes: int = 0
    process_bytes: int = 0


NO_LIMIT_S: Final = float("inf")

# A callable, because reading it costs as much as a small job's render.
Look = Callable[[], PoolView]


def has_time(loop_late_s: float, settings: TokenSettings) -> bool:
    """Return whether the loop has time for a job. One that is late has none: jobs on it would
    starve everything else. Where a job may not bail, it has to be done somewhere."""
    return settings.fallback != "bail" or loop_late_s <= settings.stall_budget_s


def _short(job: JobView, _look: Look, settings: TokenSettings) -> bool:
    """Return whether the job is cheaper on the loop than a hop, as far as can be told before the
    render: it begins here, and moves on if the unknown part of its text is too long."""
    return job.render_s <= settings.thread_hop_s and has_time(job.loop_late_s, settings)


def _threads(job: JobView, look: Look, settings: TokenSettings) -> bool:
    """Return whether the queue has room: in jobs, in bytes and in time. An empty queue takes any
    size. A job that would hold the GIL for longer than the stall budget has no place in this
    process."""
    if job.gil_s > settings.stall_budget_s and _processes(job, look, settings):
        return False
    pool = look()
    if pool.queued_jobs == 0:
        return pool.threads > 0
    return (
        pool.threads > 0
        and pool.queued_jobs < settings.queue_limit_jobs
        and pool.queued_bytes + job.size_bytes <= settings.queue_limit_bytes
        and pool.wait_s <= settings.queue_wait_limit_s
    )


def _processes(job: JobView, look: Look, settings: TokenSettings) -> bool:
    """Return whether one of them has room. An idle one takes any size."""
    pool = look()
    if pool.processes == 0:
        return False
    return pool.process_bytes == 0 or (
        pool.process_bytes + job.size_bytes <= settings.process_limit_bytes
    )


def _local(job: JobView, look: Look, settings: TokenSettings) -> bool:
    """Return whether the loop may do the job: one at a time, in pieces no longer than the stall
    budget. The render is one piece; whether the text can be cut small enough shows after it, and if
    it cannot the job bails then."""
    if settings.fallback == "bail" and look().local_busy:
        return False
    return job.render_s <= settings.stall_budget_s and has_time(job.loop_late_s, settings)


Admission = Callable[[JobView, Look, TokenSettings], bool]

RUNGS: Final[tuple[tuple[Rung, Admission], ...]] = (
    (Rung.SHORT, _short),
    (Rung.THREADS, _threads),
    (Rung.PROCESSES, _processes),
    (Rung.LOCAL, _local),
)


def choose(job: JobView, look: Look, settings: TokenSettings, *, begun: bool = False) -> Rung:
    """Return the first rung that admits the job, or bail. begun: the short one had it already."""
    for rung, admits in RUNGS[1:] if begun else RUNGS:
        if admits(job, look, settings):
            return rung
    return Rung.BAIL
