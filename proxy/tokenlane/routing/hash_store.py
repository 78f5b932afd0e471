"""Packed hashes of one generation, one behind the other in a few large buffers.

A generation is dropped as a whole. What lies in large buffers goes back to the system with it,
where so many small objects would leave holes between those of other generations.

Invariants:
- A place stays as it is, and is given up with all the others alone.
- What is added together lies together, so a part of it has a place, too.
- Of a buffer, the pages that nothing was written to take no memory.
"""

import mmap
from typing import Final

from tokenlane.prompt import HASH_BYTES

BUFFER_BYTES: Final = 1024 * 1024
# The first buffer grows up to this: most of those that are held for a tenant are never full.
_FIRST_BYTES: Final = 64 * 1024
_LEAST_BYTES: Final = 1024
# What is added at once at most: of a buffer, little more than that is left unused.
PIECE_BYTES: Final = 32 * 1024
# A place is the number of its first hash, and how many there are in the lowest bits.
_COUNT_BITS: Final = 6
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1
_NUMBER_BITS: Final = (BUFFER_BYTES // HASH_BYTES - 1).bit_length()
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


class HashStore:
    """packed: native uint64, as tokenlane.tokens.blocks makes them."""

    __slots__ = ("_buffers", "_last", "_used_bytes")

    def __init__(self) -> None:
        self._last: bytearray | mmap.mmap = bytearray()
        self._buffers: list[bytearray | mmap.mmap] = [self._last]
        self._used_bytes = 0  # of the last one

    def add(self, packed: bytes) -> int:
        """Add up to PIECE_BYTES and return the number of the first hash: those behind it have the
        numbers that follow."""
        at = self._used_bytes
        end = at + len(packed)
        if end > len(self._last):
            self._make_room(len(packed))
            at = self._used_bytes
            end = at + len(packed)
        self._last[at:end] = packed
        self._used_bytes = end
        return (len(self._buffers) - 1 << _NUMBER_BITS) + at // HASH_BYTES

    def packed(self, place: int) -> bytes:
        """Return the hashes at a place."""
        number = place >> _COUNT_BITS
        at = (number & _NUMBER_MASK) * HASH_BYTES
        end = at + (place & _COUNT_MASK) * HASH_BYTES
        return bytes(self._buffers[number >> _NUMBER_BITS][at:end])

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        if len(self._buffers) == 1:
            return len(self._last)
        pages = -(-self._used_bytes // mmap.PAGESIZE)
        between = (len(self._buffers) - 2) * BUFFER_BYTES
        return len(self._buffers[0]) + between + pages * mmap.PAGESIZE

    def _make_room(self, wanted_bytes: int) -> None:
        """Make room behind the last hash."""
        buffers, used = self._buffers, self._used_bytes
        size = max(_LEAST_BYTES, 1 << (used + wanted_bytes - 1).bit_length())
        if len(buffers) == 1 and size <= _FIRST_BYTES:
            grown = bytearray(size)
            grown[:used] = self._last[:used]
            self._last = buffers[0] = grown
        else:
            self._last = _buffer()
            buffers.append(self._last)
            self._used_bytes = 0


def _buffer() -> bytearray | mmap.mmap:
    try:
        return mmap.mmap(-1, BUFFER_BYTES)
    except OSError:  # a process may have so many mappings
        return bytearray(BUFFER_BYTES)


def place(number: int, count: int) -> int:
    """Return the place of so many hashes from a number on: up to 63."""
    return number << _COUNT_BITS | count


def part(place: int, low: int, high: int) -> int:
    """Return the place of some of the hashes at a place."""
    return (place & ~_COUNT_MASK) + (low << _COUNT_BITS) + high - low
