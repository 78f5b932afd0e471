"""The stall monitor of a worker: heartbeat, watchdog and verdict put together.

Invariants:
- Everything that is written to the metrics is written on the loop's thread, which owns them.
- On the loop a stall costs a verdict and a message, after it is over; percentiles are made where
  no request waits (see tokenlane.control.dashboard.stall_page).
- Its own cost is counted: the watchdog's thread and the beats. (Marks are not: 0.1 to 0.2 µs.)
"""

import array
import gc
import sys
import time
from collections.abc import Callable

from tokenlane.config.settings import StallSettings
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import Histogram, MetricsSegment
from tokenlane.telemetry.stalls.causes import Evidence, decide, held_s
from tokenlane.telemetry.stalls.heartbeat import Heartbeat, Late
from tokenlane.telemetry.stalls.stages import CAUSES, LOOP
from tokenlane.telemetry.stalls.stall import Stall
from tokenlane.telemetry.stalls.watchdog import Requests, Watchdog


class StallMonitor:
    """Watches the running loop. histogram: of how late its beats are. in_hand: the requests in
    hand, asked for from another thread. on_stall: told of each stall once it is over."""

    def __init__(
        self,
        settings: StallSettings,
        segment: MetricsSegment,
        worker: int,
        *,
        histogram: Histogram,
        in_hand: Callable[[], Requests],
        on_stall: Callable[[Stall], object],
    ) -> None:
        self._worker = worker
        self._in_hand = in_hand
        self._on_stall = on_stall
        self._histogram = histogram
        self._counts = {cause: segment.counter(families.LOOP_STALLS, cause) for cause in CAUSES}
        self._seconds = {
            cause: segment.counter(families.LOOP_STALL_CAUSES, cause) for cause in CAUSES
        }
        self._cpu = segment.counter(families.STALL_MONITOR_CPU)
        self._recent = array.array("f")
        self._gc_began_s = 0.0
        self._gc_s = 0.0
        self.heart = Heartbeat(
            self._observe,
            self._late,
            period_s=settings.beat_s,
            idle_period_s=settings.idle_beat_s,
            threshold_s=settings.threshold_s,
        )
        self.dog = Watchdog(self.heart, in_hand)

    def start(self) -> None:
        """Begin to watch."""
        gc.callbacks.append(self._collecting)
        self.heart.start()
        self.dog.start()

    def stop(self) -> None:
        """End the watch and its thread."""
        self.heart.stop()
        self.dog.stop()
        self.heart.close()
        gc.callbacks.remove(self._collecting)

    def sample(self) -> bytes:
        """Count its own cost, and return the lateness of the beats since the last call, as packed
        float32 seconds. Called now and then."""
        self._cpu.reach(self.dog.cpu_s() + self.heart.beats_s)
        recent, self._recent = self._recent, array.array("f")
        return recent.tobytes()

    # -- on the loop -------------------------------------------------------------------------

    def _observe(self, late_s: float) -> None:
        if late_s <= self.heart.threshold_s:
            self._gc_s = 0.0
            if LOOP.spans:
                LOOP.take()
        self._histogram.observe(late_s)
        self._recent.append(late_s)

    def _late(self, late: Late) -> None:
        gc_s, self._gc_s = self._gc_s, 0.0
        before, after = late.before, late.after
        length_s = after.at_s - late.due_s
        watched = self.dog.watched
        seen = watched.beat == late.beat
        looks = watched.looks[:] if seen else []
        cpu_s = after.cpu_s - before.cpu_s
        others_cpu_s = max(0.0, after.process_cpu_s - before.process_cpu_s - cpu_s)
        watch_s = max(0.0, after.at_s - max(late.due_s, late.alarm_s))
        kept = not looks or looks[0].kept_s >= watch_s / 2
        evidence = Evidence(
            length_s=length_s,
            ended_s=after.at_s,
            end_cpu_s=after.cpu_s,
            cpu_s=min(length_s, max(0.0, cpu_s - late.usual_cpu_s)),
            others_cpu_s=others_cpu_s,
            gc_s=gc_s,
            waits=max(0, round(after.waits - before.waits - late.usual_waits)),
            preempted=after.preempted - before.preempted,
            watch_s=watch_s,
            # Read only where it matters, because the kernel formats a page of text for it.
            watchdog_waits=self.dog.waits() - len(looks) if kept else 0,
            switch_interval_s=sys.getswitchinterval(),
            looks=looks,
            spans=[*LOOP.take(), (LOOP.stage, LOOP.since_s, after.at_s)],
        )
        verdict = decide(evidence)
        self._counts[verdict.cause].inc()
        self._seconds[verdict.cause].inc(length_s)
        in_hand, in_hand_count = watched.in_hand if seen else self._in_hand()
        self._on_stall(
            Stall(
                worker=self._worker,
                at_s=time.time() - length_s,
                began_s=late.due_s,
                length_s=length_s,
                cause=verdict.cause,
                stack=tuple(verdict.stack),
                in_hand=in_hand,
                in_hand_count=in_hand_count,
                cpu_s=evidence.cpu_s,
                others_cpu_s=others_cpu_s,
                gc_s=gc_s,
                held_s=held_s(evidence),
                waits=evidence.waits,
                watchdog_waits=evidence.watchdog_waits,
                watched_after_s=looks[0].kept_s if looks else None,
                states="".join(look.state for look in looks),
            )
        )

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        """Time a garbage collection. Called by gc.callbacks in the thread that collects, while all
        others wait."""
        now_s = time.monotonic()
        if phase == "start":
            self._gc_began_s = now_s
        else:
            self._gc_s += now_s - self._gc_began_s
