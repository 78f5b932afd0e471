"""The heartbeat of an event loop: how late it beats is how long it was held.

Waking a loop that sleeps is most of a beat's price. So a loop that works beats where it is awake
anyway: at the end of the first turn with a mark (see stages) after `period_s` without a beat. In
between a timer sees to it that it beats at all: every third period, or every `idle_period_s` if
it has little to do. An idle loop beats at the end of every turn with a mark, up to a few in a
period: the first request after a silence is measured as well as any.

Next come system calls: to move the watchdog's alarm, and to ask what the thread has used. So the
timer's beats do that, and others only where they are late, or the timer is slow: while the loop
is idle.

Invariants:
- No task. One timer in the kernel that repeats, so that the loop sets none: it knows when it was
  due to some microseconds, and however late it is, the next one comes in time.
- A beat can be late only since the one before it: no stall is told twice.
- `alarm` goes off `threshold_s` after a timer's beat that did not come, and only then. `count`
  grows at every beat: whoever saw it unchanged knows that the loop is late still.
"""

import asyncio
import resource
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tokenlane.runtime.clock import monotonic, thread_time
from tokenlane.telemetry.stalls.alarm import Alarm
from tokenlane.telemetry.stalls.stages import LOOP

PERIOD_S: Final = 0.005
IDLE_PERIOD_S: Final = 0.020
THRESHOLD_S: Final = 0.002
# Of a working loop's timer, in periods.
_TICK_PERIODS: Final = 3
# A loop that used less of the time than this was woken for the beat alone, or nearly so.
_BUSY_SHARE: Final = 0.1
# Quiet ticks in a row after which a loop counts as idle.
_QUIET_TICKS: Final = 10
# More beats than this between two ticks of an idle loop add nothing.
_NUDGES: Final = 4
_NEVER_S: Final = 1e9


class ThreadUsage(NamedTuple):
    """The CPU time of the loop's thread and of the process at time.monotonic() `at_s`. waits: times
    the thread went to sleep. preempted: times it was made to wait for a CPU."""

    at_s: float
    cpu_s: float
    waits: int
    preempted: int
    process_cpu_s: float


def usage() -> ThreadUsage:
    """Return the usage of the calling thread and its process."""
    # The CPU times that getrusage tells are a clock tick old.
    switches = resource.getrusage(resource.RUSAGE_THREAD)
    return ThreadUsage(
        monotonic(),
        thread_time(),
        switches.ru_nvcsw,
        switches.ru_nivcsw,
        time.process_time(),
    )


class Late(NamedTuple):
    """A beat that came later than the threshold. due_s: when the loop should have beaten,
    time.monotonic(). before, after: what was used until the last look at that, a tick of the
    timer or less before, and until now. usual_cpu_s, usual_waits: of that, what the loop can be
    expected to have used before it was late. alarm_s: when the alarm went off for it, or would
    have. beat: the number of the beat before."""

    due_s: float
    alarm_s: float
    before: ThreadUsage
    after: ThreadUsage
    usual_cpu_s: float
    usual_waits: float
    beat: int


class Heartbeat:
    """Calls `observe(lateness_s)` at every beat of the running loop, then `on_late` if it was
    later than `threshold_s`.

    idle_period_s: no longer than three periods for a steady beat. beats_s: CPU they took so far.
    """

    def __init__(
        self,
        observe: Callable[[float], object],
        on_late: Callable[[Late], object] | None = None,
        *,
        period_s: float = PERIOD_S,
        idle_period_s: float = IDLE_PERIOD_S,
        threshold_s: float = THRESHOLD_S,
    ) -> None:
        self.period_s = period_s
        self.work_period_s = period_s * _TICK_PERIODS
        self.idle_period_s = max(self.work_period_s, idle_period_s)
        self.threshold_s = threshold_s
        self.count = 0
        self.beats_s = 0.0
        self.alarm = Alarm()
        self.alarm_due_s = 0.0
        self.idle = False
        self._observe = observe
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._ticker = Alarm(blocks=False)
        self._tick_s = 0.0
        self._due_s = 0.0
        self._share_of = self._before = usage()
        self._beat_s = 0.0
        self._share = 0.0
        self._waits_per_s = 0.0
        self._quiet = 0
        self._working_s: float | None = None
        self._nudges = 0

    def start(self) -> None:
        """Begin to beat."""
        self._share_of = self._before = usage()
        self._loop.add_reader(self._ticker.descriptor, self._ticked)
        self._pace(self.work_period_s)

    def stop(self) -> None:
        """Stop beating and disarm the alarm. Threads that wait for it must end before `close`."""
        LOOP.on_work(None)
        if self._tick_s:
            self._tick_s = 0.0
            self._loop.remove_reader(self._ticker.descriptor)
            self.alarm.set(_NEVER_S)

    def close(self) -> None:
        """Close the timers."""
        self._ticker.close()
        self.alarm.close()

    def _pace(self, tick_s: float) -> None:
        now_s = monotonic()
        self._tick_s = tick_s
        self._due_s = now_s + tick_s
        self._ticker.repeat(tick_s)
        self._listen(now_s)
        self._wake_at(self._due_s, now_s)

    def _listen(self, now_s: float) -> None:
        """Listen for the mark at which work makes a beat."""
        if not self.idle:
            LOOP.on_work(self._working, now_s + self.period_s)
        elif self._nudges < _NUDGES:
            LOOP.on_work(self._working, now_s)

    def _wake_at(self, due_s: float, now_s: float) -> None:
        """Set the alarm for when a beat that is due then would be late."""
        self.alarm_due_s = due_s + self.threshold_s
        self.alarm.set(self.alarm_due_s - now_s)

    # -- beats -------------------------------------------------------------------------------

    def _ticked(self) -> None:
        """Beat, because the timer fired."""
        began_s = thread_time()
        due_s = self._due_s
        self._due_s += self._ticker.wait() * self._tick_s
        self._beat(due_s, monotonic())
        self._look_back()
        self.beats_s += thread_time() - began_s

    def _working(self, since_s: float, now_s: float) -> None:
        """Beat at the end of this turn, since a mark shows the loop at work."""
        began_s = thread_time()
        self._working_s = since_s
        self._nudges += 1
        self._loop.call_soon(self._worked)
        if self.idle:
            self._wake_at(now_s, now_s)
        self.beats_s += thread_time() - began_s

    def _worked(self) -> None:
        if self._working_s is None or not self._tick_s:
            return  # the timer was first, or the last beat was
        began_s = thread_time()
        now_s = monotonic()
        # An overdue tick may come after this, and is told now: the loop was held before the mark.
        self._beat(min(self._working_s, self._due_s), now_s)
        self._listen(now_s)
        if self.idle:
            self._wake_at(max(self._due_s, now_s), now_s)
        self.beats_s += thread_time() - began_s

    def _beat(self, due_s: float, now_s: float) -> None:
        if self._working_s is not None:
            due_s = min(due_s, self._working_s)
            self._working_s = None
        due_s = max(due_s, self._beat_s)
        self._beat_s = now_s
        self.count += 1
        late_s = max(0.0, now_s - due_s)
        self._observe(late_s)
        if late_s > self.threshold_s and self._on_late is not None:
            before, self._before = self._before, usage()
            usual_s = max(0.0, due_s - before.at_s)
            self._on_late(
                Late(
                    due_s,
                    self.alarm_due_s,
                    before,
                    self._before,
                    self._share * usual_s,
                    self._waits_per_s * usual_s,
                    self.count - 1,
                )
            )

    def _look_back(self) -> None:
        """Decide, after a tick's beat, by the work since the last one, when to beat next."""
        then, now = self._share_of, usage()
        self._share_of = self._before = now
        passed_s = now.at_s - then.at_s
        self._share = (now.cpu_s - then.cpu_s) / passed_s
        self._waits_per_s = (now.waits - then.waits) / passed_s
        busy = self._share > _BUSY_SHARE or self._nudges * self.work_period_s >= passed_s
        self._quiet = 0 if busy else self._quiet + 1
        self._nudges = 0
        self.idle = self._quiet >= _QUIET_TICKS and self.idle_period_s > self.work_period_s
        tick_s = self.idle_period_s if self.idle else self.work_period_s
        if tick_s == self._tick_s:
            self._listen(now.at_s)
            self._wake_at(self._due_s, now.at_s)
        else:
            self._pace(tick_s)
