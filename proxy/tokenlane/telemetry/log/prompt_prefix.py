"""A prompt's beginning in an access log: hashes few and short enough for a line.

Invariants:
- A mark names all of the prompt before it, as the hash does that it is cut from: equal marks at
  one place are equal beginnings, whatever lies between two marks.
- No mark stands for fewer tokens than the operator asked for, and none can be turned into them.
"""

from base64 import b64decode, b64encode

LIMIT_MARKS = 320
# Bytes of a mark, of the hash's 8. A million different marks contain two equal ones by chance once
# in 500 times.
MARK_BYTES = 6


def marks(blocks: bytes, step: int) -> bytes:
    """Return every step-th of these packed 64-bit hashes, from the step-th on; LIMIT_MARKS of
    them."""
    return memoryview(blocks).cast("Q")[step - 1 :: step][:LIMIT_MARKS].tobytes()


def written(packed: bytes) -> str:
    """Return marks as text: 8 letters each."""
    return b64encode(
        b"".join([packed[at : at + MARK_BYTES] for at in range(0, len(packed), 8)])
    ).decode("ascii")


def read(text: str) -> bytes:
    """Return the marks of `written`, packed as 64-bit numbers. Raise ValueError."""
    raw = b64decode(text, validate=True)
    if len(raw) % MARK_BYTES:
        raise ValueError("a mark is cut short")
    rest = bytes(8 - MARK_BYTES)
    return b"".join([raw[at : at + MARK_BYTES] + rest for at in range(0, len(raw), MARK_BYTES)])
