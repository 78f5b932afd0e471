"""Which stage the data loop is in: marks that cost 0.1 to 0.2 µs, and that any thread can read.

Invariants:
- One data loop in a process, and only its thread marks. Whoever marks a stage marks OTHER before
  it returns to the loop, and awaits `with AWAITING[stage]`, so what is not marked is never charged
  to what was.
- A mark looks at the clock: a stretch in one stage that was long is known exactly, even if no
  other thread could run meanwhile (a C call that holds the GIL) or none was given a CPU.
- What listens to marks costs those that nobody listens to nothing: a stretch longer than
  `limit_s` is rare, the time `work_s` is passed by one mark alone, and a listener to all of them
  lowers the limit below zero.
"""

from collections.abc import Callable
from typing import Final

from tokenlane.runtime.clock import monotonic

# The causes of a stall. A stage is its index here; the entries after METRICS are not stages.
CAUSES: Final = (
    "parse", "inspect", "tokenize-local", "route", "relay", "metrics", "gc", "gil", "os", "other",
)  # fmt: skip
PARSE: Final = 0
INSPECT: Final = 1
TOKENIZE_LOCAL: Final = 2
ROUTE: Final = 3
RELAY: Final = 4
METRICS: Final = 5
OTHER: Final = 9

# Shorter stretches in a stage are not noted.
LONG_S: Final = 0.0005
_SPAN_LIMIT_COUNT: Final = 1000

_NEVER_S: Final = 1e18

# Stage, and time.monotonic() at its beginning and end.
Span = tuple[int, float, float]


class LoopStage:
    """The stage of a loop. stage: now. spans: the long stretches since they were last taken, in a
    stage or (OTHER) in none."""

    def __init__(self) -> None:
        self.stage = OTHER
        self.since_s = monotonic()
        self.limit_s = LONG_S
        self.work_s = _NEVER_S
        self.spans: list[Span] = []
        self._on_work: Callable[[float, float], object] | None = None
        self._on_mark: Callable[[int], object] | None = None

    def mark(self, stage: int) -> None:
        """Enter a stage."""
        now_s = monotonic()
        since_s = self.since_s
        self.since_s = now_s
        if now_s - since_s > self.limit_s or now_s > self.work_s:
            self._long(stage, since_s, now_s)
        self.stage = stage

    def take(self) -> list[Span]:
        """Return the spans since the last call."""
        spans = self.spans
        self.spans = []
        return spans

    def on_work(self, call: Callable[[float, float], object] | None, after_s: float = 0.0) -> None:
        """Call this once, at the first mark after time.monotonic() `after_s` that shows the loop
        at work: with the time since which it is known to be, and the time of the mark."""
        self._on_work = call
        self.work_s = _NEVER_S if call is None else after_s

    def on_mark(self, call: Callable[[int], object] | None) -> None:
        """Call this after each mark."""
        self._on_mark = call
        self.limit_s = LONG_S if call is None else -1.0

    def _long(self, stage: int, since_s: float, now_s: float) -> None:
        before = self.stage
        if now_s - since_s > LONG_S and len(self.spans) < _SPAN_LIMIT_COUNT:
            self.spans.append((before, since_s, now_s))
        self.stage = stage
        if now_s > self.work_s and (stage != OTHER or before != OTHER):
            on_work = self._on_work
            self.on_work(None)
            assert on_work is not None
            on_work(now_s if before == OTHER else since_s, now_s)
        if self._on_mark is not None:
            self._on_mark(stage)


LOOP: Final = LoopStage()


class _Switch:
    """A context manager: the loop is in one stage inside it, and in another after it."""

    __slots__ = ("_behind", "_within")

    def __init__(self, within: int, behind: int) -> None:
        self._within = within
        self._behind = behind

    def __enter__(self) -> None:
        LOOP.mark(self._within)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        LOOP.mark(self._behind)


# By stage: `with AWAITING[ROUTE]: await …` leaves a stage for as long as others have the loop, and
# `with DURING[ROUTE]: …` is in it for as long as the work takes.
AWAITING: Final = tuple([_Switch(OTHER, stage) for stage in range(len(CAUSES))])
DURING: Final = tuple([_Switch(stage, OTHER) for stage in range(len(CAUSES))])
