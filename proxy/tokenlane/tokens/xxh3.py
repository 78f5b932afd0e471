"""XXH3 (64 bits) of a chain of blocks as machine code, where this module is compiled.

Invariants:
- Each hash is what `xxhash.xxh3_64_intdigest(block, hash before it)` gives: compiled and plain
  builds name prefixes alike.
- Only where NATIVE: `i64` wraps around when compiled, and is an unbounded int otherwise.

Why: a call of xxhash for each block makes two Python ints and a slice, 130 ns in all, of which the
hash is a tenth. Here no number becomes an object: 26 ns.
Source: the XXH3 specification (github.com/Cyan4973/xxHash), inputs of 17 to 128 bytes.
"""

import sys
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64

NATIVE: Final = not __file__.endswith(".py") and sys.byteorder == "little"
# 16 tokens, vLLM's default block size.
BLOCK_BYTES: Final[i64] = 64

# The first third of the specification's default secret, which is all that short inputs need.
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
)
_LOW_32: Final[i64] = (1 << 32) - 1
_LOW_27: Final[i64] = (1 << 27) - 1
# BLOCK_BYTES times the specification's first prime, modulo 2^64, as a signed number.
_LENGTH: Final[i64] = -0x7221939E850D5E40
_AVALANCHE: Final[i64] = 0x165667919E3779F9


def chained(data: bytes, at: i64, blocks: i64, before: bytes) -> bytes:
    """Return packed hashes of so many blocks of `data` from byte `at` on. before: the packed hash
    that the first of them is chained on (8 bytes). IndexError where data ends sooner."""
    made = BytesWriter()
    seed = read_i64_le(before, 0)
    for _ in range(blocks):
        value = (
            _LENGTH
            + _mixed(data, at, 0, seed)
            + _mixed(data, at + 16, 32, seed)
            + _mixed(data, at + 32, 48, seed)
            + _mixed(data, at + 48, 16, seed)
        )
        value = (value ^ ((value >> 37) & _LOW_27)) * _AVALANCHE
        seed = value ^ ((value >> 32) & _LOW_32)
        write_i64_le(made, seed)
        at += BLOCK_BYTES
    return made.getvalue()


def _mixed(data: bytes, at: i64, secret: i64, seed: i64) -> i64:
    """Mix 16 bytes of the input with 16 of the secret."""
    return _folded(
        read_i64_le(data, at) ^ (read_i64_le(_SECRET, secret) + seed),
        read_i64_le(data, at + 8) ^ (read_i64_le(_SECRET, secret + 8) - seed),
    )


def _folded(one: i64, other: i64) -> i64:
    """Fold the 128-bit product: XOR its halves. Shifts keep the sign, hence the masks."""
    one_low, one_high = one & _LOW_32, (one >> 32) & _LOW_32
    other_low, other_high = other & _LOW_32, (other >> 32) & _LOW_32
    low, cross = one_low * other_low, one_high * other_low
    middle = ((low >> 32) & _LOW_32) + (cross & _LOW_32) + one_low * other_high
    high = one_high * other_high + ((cross >> 32) & _LOW_32) + ((middle >> 32) & _LOW_32)
    return ((middle << 32) | (low & _LOW_32)) ^ high
