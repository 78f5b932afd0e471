"""Parents that wait for several requests: since when each has been heard of.

Invariants:
- A parent is remembered while one of its requests is open and for `keep_s` after. No more than
  `_LIMIT` are: who makes up parents without end changes the order of requests at most, and keeps
  no memory.
"""

from typing import NamedTuple

_LIMIT = 1000
_ENTRY_BYTES = 320


class _Heard(NamedTuple):
    """since_s: its first request came; last_s: the newest came or ended; open: not ended."""

    since_s: float
    last_s: float
    open: int


class Parents:
    """Of one tenant. `now`: monotonic seconds."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        # By number, the one heard of last at the end.
        self._heard: dict[int, _Heard] = {}

    def asked(self, parent: int, now: float, keep_s: float) -> float:
        """One more request that this parent waits for: when the first of them came."""
        heard = self._heard.pop(parent, None)
        if heard is None or (not heard.open and now - heard.last_s > keep_s):
            heard = _Heard(now, now, 0)
        self._heard[parent] = _Heard(heard.since_s, now, heard.open + 1)
        if len(self._heard) > _LIMIT:
            del self._heard[next(iter(self._heard))]
        return heard.since_s

    def ended(self, parent: int, now: float) -> None:
        """One of them is over."""
        heard = self._heard.pop(parent, None)
        if heard is not None:
            self._heard[parent] = _Heard(heard.since_s, now, max(heard.open - 1, 0))

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated."""
        return len(self._heard) * _ENTRY_BYTES

    def __len__(self) -> int:
        return len(self._heard)
