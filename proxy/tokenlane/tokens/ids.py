"""Ids as they are kept and handed on: packed little-endian uint32."""

import sys
from array import array

_PART_IDS = 16 * 1024


def pack(ids: list[int]) -> bytes:
    """Ids as packed little-endian uint32."""
    packed = array("I")
    # By parts: one call over a million ids holds the GIL for tens of milliseconds.
    for at in range(0, len(ids), _PART_IDS):
        packed.fromlist(ids[at : at + _PART_IDS])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(ids: bytes) -> "array[int]":
    """The ids of a packed buffer."""
    unpacked = array("I")
    unpacked.frombytes(ids)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked
