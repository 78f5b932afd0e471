"""A worker's places of tenants that gateways share: what it has and wants up, its portions down.

Invariants:
- Nothing runs where gateways share nothing. What did not change is not told.
- Portions are told once, maybe before a reload makes the queue that they are for: they are kept.
"""

import asyncio
from collections.abc import Callable

from tokenlane.admission.queue import AdmissionQueue

_PERIOD_S = 0.05


class PlaceReports:
    """Of one worker. queue: where it has one now. tell: the supervisor."""

    def __init__(
        self,
        queue: Callable[[], AdmissionQueue | None],
        tell: Callable[[dict[str, tuple[int, int, int]]], object],
    ) -> None:
        self._queue = queue
        self._tell = tell
        self._told: dict[str, tuple[int, int, int]] = {}
        self._portions: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Report now, and again and again."""
        queue = self._queue()
        if queue is not None:
            if not self._told:  # the queue may be new
                queue.wake(queue.admission.portion(self._portions))
            places = queue.admission.places()
            changed: dict[str, tuple[int, int, int]] = {
                key: place for key, place in places.items() if self._told.get(key) != place
            }
            if changed:
                self._tell(changed)
                self._told |= changed
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self.start)

    def portions(self, portions: dict[str, int]) -> None:
        """Take what the supervisor gives."""
        self._portions |= portions
        queue = self._queue()
        if queue is not None:
            queue.wake(queue.admission.portion(portions))

    def stop(self) -> None:
        """Report no more."""
        if self._timer is not None:
            self._timer.cancel()
