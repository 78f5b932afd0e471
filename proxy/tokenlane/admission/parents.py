"""Parents that wait for several requests, with the time of each one's first request.

Invariants:
- A parent is remembered while one of its requests is open and for `keep_s` after. No more than
  `_LIMIT` are: a client that makes up parents without end changes the order of requests at most,
  and takes no memory.
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
    """The parents of one tenant. `now`: monotonic seconds."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        # By number, the one heard of last at the end.
        self._heard: dict[int, _Heard] = {}

    def asked(self, parent: int, now: float, keep_s: float) -> float:
        """Count one more request of this parent. Return when its first one arrived."""
        heard = self._heard.pop(parent, None)
        if heard is None or (not heard.open and now - heard.last_s > keep_s):
            heard = _Heard(now, now, 0)
        self._heard[parent] = _Heard(heard.since_s, now, heard.open + 1)
        if len(self._heard) > _LIMIT:
            del self._heard[next(iter(self._heard))]
        return heard.since_s

    def ended(self, parent: int, now: float) -> None:
        """Note that one of its requests has ended."""
        heard = self._heard.pop(parent, None)
        if heard is not None:
            self._heard[parent] = _Heard(heard.since_s, now, max(heard.open - 1, 0))

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated."""
        return len(self._heard) * _ENTRY_BYTES

    def __len__(self) -> int:
        return len(self._heard)
