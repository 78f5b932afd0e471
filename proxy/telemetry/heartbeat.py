"""The heartbeat of an event loop: how late its timers are is how long it was held.

While the loop works it beats every `period_s`. A loop that has little to do is not woken so often,
since waking it is most of a beat's price: every `idle_period_s`, and then also at the loop's next
turn after the first mark (see stages) since a beat. So the first request after a silence is
measured as well as any.

Invariants:
- Always one timer, no task. A beat costs a few microseconds, a system call for the alarm included.
- Lateness never invents a stall: uvloop's timers count whole milliseconds of a cached clock, so
  a beat may come up to 1 ms early (counted as 0) and a stall may be reported up to 1 ms short.
- `alarm` goes off `threshold_s` after a beat that did not come, and only then. `count` grows at
  every beat: whoever saw it unchanged knows that the loop is late still.
"""

import asyncio
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from proxy.telemetry.alarm import Alarm
from proxy.telemetry.stages import LOOP

PERIOD_S = 0.005
IDLE_PERIOD_S = 0.020
THRESHOLD_S = 0.002
# A loop that used less of the last period than this was woken for the beat alone, or nearly so.
_BUSY_SHARE = 0.1
# So many quiet beats in a row make it idle, so many nudges within an idle period busy again.
_QUIET_BEATS = 10
_NUDGES = 4
_NEVER_S = 1e9


class Usage(NamedTuple):
    """What the loop's thread, and the process, had used at time.monotonic() `at_s`. waits: times
    the thread went to sleep."""

    at_s: float
    cpu_s: float
    waits: int
    process_cpu_s: float

    @classmethod
    def now(cls) -> "Usage":
        """Of the calling thread."""
        # The CPU times that getrusage tells are a clock tick old.
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return cls(time.monotonic(), time.thread_time(), waits, time.process_time())


class Late(NamedTuple):
    """A beat that came later than the threshold. due_s: when the loop should have beaten,
    time.monotonic(). before, after: what was used until the beat before and until this one.
    usual_cpu_s: of that, what the loop can be expected to have used before it was late. beat: the
    number of the beat before."""

    due_s: float
    before: Usage
    after: Usage
    usual_cpu_s: float
    beat: int


class Heartbeat:
    """Calls `observe(lateness_s)` at every beat of the running loop, then `on_late` if it was
    later than `threshold_s`.

    idle_period_s: no longer than `period_s` for a steady beat. beats_s: CPU they took so far.
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
        self.idle_period_s = max(period_s, idle_period_s)
        self.threshold_s = threshold_s
        self.count = 0
        self.beats_s = 0.0
        self.alarm = Alarm()
        self.alarm_due_s = 0.0
        self._observe = observe
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._last = self._before = Usage.now()
        self._share = 0.0
        self._quiet = 0
        self._nudged_s: float | None = None
        self._nudges = 0

    @property
    def idle(self) -> bool:
        """The loop has little to do, and beats less often."""
        return self._quiet >= _QUIET_BEATS and self.idle_period_s > self.period_s

    def start(self) -> None:
        """Begins to beat. The first beat is due one period from now."""
        self._last = self._before = Usage.now()
        self._arm(time.monotonic())

    def stop(self) -> None:
        """Stops beating, and the alarm goes off no more. Whoever waits for that must go before
        `close`."""
        LOOP.on_work(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.alarm.set(_NEVER_S)

    def close(self) -> None:
        """Gives the alarm back."""
        self.alarm.close()

    def _arm(self, now_s: float) -> None:
        period_s = self.idle_period_s if self.idle else self.period_s
        self._timer = self._loop.call_later(period_s, self._beat)
        self._due_s = now_s + period_s
        self._wake_after(period_s, now_s)

    def _wake_after(self, delay_s: float, now_s: float) -> None:
        self.alarm_due_s = now_s + delay_s + self.threshold_s
        self.alarm.set(delay_s + self.threshold_s)

    def _beat(self) -> None:
        """The timer's beat."""
        now = self._turn()
        last, self._last = self._last, now
        self._share = (now.cpu_s - last.cpu_s) / (now.at_s - last.at_s)
        busy = self._share > _BUSY_SHARE or self._nudges >= _NUDGES
        self._quiet = 0 if busy else self._quiet + 1
        self._nudges = 0
        LOOP.on_work(self._nudge if self.idle else None)
        self._arm(time.monotonic())
        self.beats_s += time.thread_time() - now.cpu_s

    def _turn(self) -> Usage:
        """The loop turns: notes how late."""
        after = Usage.now()
        before, self._before = self._before, after
        due_s = self._due_s
        usual_cpu_s = self._share * max(0.0, due_s - before.at_s)
        if self._nudged_s is not None:
            # Idle until then.
            due_s, usual_cpu_s = min(due_s, self._nudged_s), 0.0
            self._nudged_s = None
        self.count += 1
        late_s = after.at_s - due_s
        self._observe(max(0.0, late_s))
        if late_s > self.threshold_s and self._on_late is not None:
            self._on_late(Late(due_s, before, after, usual_cpu_s, self.count - 1))
        return after

    # -- while idle --------------------------------------------------------------------------

    def _nudge(self) -> None:
        """The first mark since a beat: the loop's next turn is a beat too."""
        self._nudged_s = now_s = time.monotonic()
        self._nudges += 1
        self._loop.call_soon(self._nudged)
        self._wake_after(0.0, now_s)

    def _nudged(self) -> None:
        if self._nudged_s is None or self._timer is None:
            return  # the timer's beat came first, or the last one did
        now = self._turn()
        # An overdue timer comes in the same turn of the loop.
        self._wake_after(max(self._due_s - now.at_s, self.period_s), now.at_s)
        if self._nudges < _NUDGES:
            LOOP.on_work(self._nudge)
        self.beats_s += time.thread_time() - now.cpu_s
