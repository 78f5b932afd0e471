"""Which keys were asked for before, roughly: what is asked for once is not worth a cache's place.

Invariants:
- A key that came before is known, unless all have been forgotten since, which happens after so many
  new ones that one in ten would be taken for a known one.
- Takes the same memory whatever comes.
"""

from typing import Final

_BITS: Final = 20
_SIZE: Final = 1 << _BITS
_LIMIT_COUNT: Final = _SIZE // 10


class Doorkeeper:
    """One bit for each of a million keys."""

    def __init__(self) -> None:
        self._seen = bytearray(_SIZE // 8)
        self._count = 0

    def knew(self, key: bytes) -> bool:
        """Return whether the key came before, and remember it."""
        place = hash(key) & (_SIZE - 1)
        at, bit = place >> 3, 1 << (place & 7)
        before = self._seen[at]
        if before & bit:
            return True
        if self._count == _LIMIT_COUNT:
            self._seen, self._count = bytearray(_SIZE // 8), 0
            before = 0
        self._seen[at] = before | bit
        self._count += 1
        return False
