"""Ids as they are stored and passed on: packed little-endian uint32.

Invariant: conversions from and to JSON go by parts. No list of a long prompt's ids is ever made,
and no call holds the GIL for long.
"""

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

# 0.3 ms.
_PART_IDS = 16 * 1024
_PART_BYTES = 4 * _PART_IDS

_encode = msgspec.json.Encoder().encode
_decode_ids = msgspec.json.Decoder(list[int]).decode


def pack(ids: list[int]) -> bytes:
    """Return ids as packed little-endian uint32."""
    packed = array("I")
    for at in range(0, len(ids), _PART_IDS):
        packed.fromlist(ids[at : at + _PART_IDS])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(ids: bytes) -> "array[int]":
    """Return the ids of a packed buffer."""
    unpacked = array("I")
    unpacked.frombytes(ids)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked


def as_json(ids: bytes) -> bytes:
    """Return the items of a JSON list. ids: packed, of a short part."""
    return _encode(unpack(ids).tolist())[1:-1]


def from_json(listed: bytes) -> bytes:
    """Return packed ids of a JSON list. Raises msgspec.ValidationError, OverflowError."""
    if not listed.startswith(b"["):
        raise msgspec.ValidationError("no list")
    packed, at, end = [], 1, len(listed) - 1
    while at < end:
        stop = listed.find(b",", at + _PART_BYTES)
        stop = end if stop < 0 else stop
        packed.append(pack(_decode_ids(b"[%b]" % listed[at:stop])))
        at = stop + 1
    return b"".join(packed)


def json_items(ids: bytes, made: Callable[[bytes], list[Any]]) -> Iterator[bytes]:
    """Yield the items of a JSON list in parts to be joined, each made from a batch of ids."""
    for at in range(0, len(ids), _PART_BYTES):
        if at:
            yield b","
        yield _encode(made(ids[at : at + _PART_BYTES]))[1:-1]
