"""Find the cause of a late beat from its evidence. Pure.

The questions, in this order:
1. Did the garbage collector take half of it?                                -> gc
2. Did the loop's thread use a CPU for a third of it? Then it had work of
   its own, however long the kernel made it wait meanwhile                   -> the stage
3. Else it did not run. Did it ask for the GIL again and again, as the
   watchdog did too, or while other threads used a CPU?                      -> gil
4. Was the watchdog kept from looking too? If it asked for the GIL again and
   again, the loop's thread held that, asleep in a C call                    -> the stage
   else the process as a whole did not run                                   -> os
   unless it was to look for a small part of the stall only, which tells
   nothing of the rest: then by the marks, and by whether the kernel took
   the CPU from the loop's thread
5. The watchdog could look. The loop's thread slept in marked code           -> the stage
   was ready to run and did not, or slept where it waits for events          -> os

Invariants:
- A thread that waits for the GIL wakes up once every switch interval to ask for it: so its
  voluntary context switches tell waiting for the GIL from every other sleep.
- Which stage it was, the marks know (see stages). Where no single stretch was long, the looks
  decide, each for the time since the one before.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from tokenlane.telemetry.stalls.stages import CAUSES, METRICS, OTHER, Span

# Which stage code belongs to, where it ran without a mark.
_HOMES = (
    ("tokenlane/relay/", "relay"),
    ("tokenlane/http/upstream.py", "relay"),
    ("tokenlane/http/pool.py", "relay"),
    ("tokenlane/http/", "parse"),
    ("tokenlane/protocols/", "inspect"),
    ("tokenlane/tokens/", "tokenize-local"),
    ("tokenlane/routing/", "route"),
    ("tokenlane/gateway/request_record.py", "metrics"),
    ("tokenlane/gateway/recorder.py", "metrics"),
    ("tokenlane/worker/gauges.py", "metrics"),
    ("tokenlane/telemetry/", "metrics"),
)
# Functions in which a loop waits for events.
_SELECTORS = ("uvloop/__init__.py", "asyncio/runners.py", "asyncio/base_events.py", "selectors.py")

_OWN_SHARE = 1 / 3
# In less time the watchdog cannot be expected to have looked.
_WATCH_S = 0.001
# Of the times that a thread which waits for the GIL should have asked for it: on a busy machine
# its sleeps are longer, and in a long stall far more than the few that any thread might have had
# (one that is stopped and goes on: two or three).
_ASKED_SHARE = 1 / 3
_ASKED_LONG_SHARE = 1 / 8
_FEW_SLEEPS = 2.0


class Look(NamedTuple):
    """A sample of the watchdog, at time.monotonic() `at_s`.

    stage: the mark. stack: innermost first. state: of the loop's thread, the kernel's letter or
    `?`. cpu_s: of the loop's thread until then. kept_s: how much later than wanted the look came.
    """

    at_s: float
    stage: int
    stack: Sequence[str]
    state: str
    cpu_s: float
    kept_s: float


class Evidence(NamedTuple):
    """A late beat. length_s: how late it was. ended_s, end_cpu_s: time.monotonic() and the CPU
    seconds of the loop's thread when it came. cpu_s: of these, what was used while it was late, as
    far as that can be told. others_cpu_s (of the process's other threads), gc_s (in the garbage
    collector), waits (voluntary context switches of the loop's thread), looks and spans (long
    stretches in one stage or in none), preempted (involuntary context switches): since shortly
    before. watchdog_waits: of the watchdog, since its alarm was set. watch_s: how long the watchdog
    had for its looks."""

    length_s: float
    ended_s: float
    end_cpu_s: float
    cpu_s: float
    others_cpu_s: float
    gc_s: float
    waits: int
    watchdog_waits: int
    switch_interval_s: float
    looks: Sequence[Look]
    watch_s: float
    preempted: int = 0
    spans: Sequence[Span] = ()


class Verdict(NamedTuple):
    """cause: one of CAUSES. stack: what best shows it; may be empty."""

    cause: str
    stack: Sequence[str]


def decide(evidence: Evidence) -> Verdict:
    """Return the cause that the stall is attributed to."""
    looks = evidence.looks
    half_s = evidence.length_s / 2
    first = looks[0] if looks else None
    if evidence.gc_s >= half_s:
        return Verdict("gc", first.stack if first is not None else ())
    kept_s = evidence.watch_s if first is None else first.kept_s
    kept = first is None or kept_s >= evidence.watch_s / 2
    if evidence.cpu_s >= evidence.length_s * _OWN_SHARE or (
        not kept and _ran_since(looks[0], evidence)
    ):
        return _stage(evidence)
    watchdog_queued = kept and _queued(evidence.watchdog_waits, evidence)
    others = watchdog_queued or evidence.others_cpu_s >= evidence.length_s * _OWN_SHARE
    if others and _queued(evidence.waits, evidence):
        return Verdict("gil", first.stack if first is not None else ())
    if kept:
        marked = _stage(evidence)
        hardly = kept_s < max(_WATCH_S, evidence.length_s * _OWN_SHARE) and not evidence.preempted
        charged = marked.cause != "other" and (watchdog_queued or hardly)
        return marked if charged else Verdict("os", ())
    asleep = sum(look.state in "SD?" for look in looks) * 2 >= len(looks)
    verdict = _stage(evidence)
    if not asleep or (verdict.cause == "other" and _waits_for_events(looks[0].stack)):
        return Verdict("os", ())
    return verdict


def held_s(evidence: Evidence) -> float:
    """Return the least CPU seconds for which one piece of work held the loop: of the time that
    passed between its marks, what the loop's thread can only have spent in it. The collector's time
    is none of its own."""
    began_s = evidence.ended_s - evidence.length_s
    longest_s = piece_s = 0.0
    last, last_s = OTHER, began_s
    for stage, since_s, until_s in evidence.spans:
        stretch_s = max(0.0, until_s - max(since_s, began_s))
        # A piece of work goes from stage to stage, and ends where it marks that it is in none.
        goes_on = since_s == last_s and stage != OTHER != last
        piece_s = piece_s + stretch_s if goes_on else stretch_s
        longest_s = max(longest_s, piece_s)
        last, last_s = stage, until_s
    return max(0.0, longest_s - (evidence.length_s - evidence.cpu_s) - evidence.gc_s)


def _ran_since(look: Look, evidence: Evidence) -> bool:
    """Return whether the loop's thread was on a CPU for most of the time after a look."""
    return evidence.end_cpu_s - look.cpu_s >= (evidence.ended_s - look.at_s) / 2


def _queued(waits: int, evidence: Evidence) -> bool:
    """Return whether so many sleeps are those of a thread that waits for the GIL."""
    most = evidence.length_s / evidence.switch_interval_s
    long = _FEW_SLEEPS + most * _ASKED_LONG_SHARE
    return waits >= max(_FEW_SLEEPS, min(most * _ASKED_SHARE, long))


def _stage(evidence: Evidence) -> Verdict:
    """Return the stage that took most of the time by the marks, or else was found most by the
    looks."""
    began_s = evidence.ended_s - evidence.length_s
    spans: dict[int, float] = {}
    for stage, since_s, until_s in evidence.spans:
        if stage == OTHER:
            continue
        overlap_s = max(0.0, until_s - max(since_s, began_s))
        spans[stage] = spans.get(stage, 0.0) + overlap_s
    stage = max(spans, key=lambda one: spans[one], default=OTHER)
    if spans.get(stage, 0.0) >= evidence.length_s / 2:
        stacks = [look.stack for look in evidence.looks if look.stage == stage]
        return Verdict(CAUSES[stage], stacks[len(stacks) // 2] if stacks else ())
    return _seen(evidence)


def _seen(evidence: Evidence) -> Verdict:
    seen: dict[str, list[tuple[float, Sequence[str]]]] = {}
    before_s = evidence.ended_s - evidence.length_s
    for look in evidence.looks:
        seen.setdefault(_cause(look), []).append((max(0.0, look.at_s - before_s), look.stack))
        before_s = look.at_s
    if not seen:
        return Verdict("other", ())
    cause = max(seen, key=lambda name: sum([weight for weight, _ in seen[name]]))
    # Of stretches that are as long as each other the last.
    return Verdict(cause, max(reversed(seen[cause]), key=itemgetter(0))[1])


def _cause(look: Look) -> str:
    if look.stage <= METRICS:
        return CAUSES[look.stage]
    for frame in look.stack:
        for home, stage in _HOMES:
            if home in frame:
                return stage
    return CAUSES[OTHER]


def _waits_for_events(stack: Sequence[str]) -> bool:
    return not stack or any(selector in stack[0] for selector in _SELECTORS)
