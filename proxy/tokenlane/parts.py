"""Long bytes in parts of one length: a conversation's turns share those that they have in common.

Invariants:
- Parts never change. All of a list are of its length but the last one.
- A body in parts is the client's bytes: a known part stands for received ones only where all of
  them were compared.
"""

from typing import Final

# Of a body. Going on from a known one copies less than one of them.
BODY_PART_BYTES: Final = 32 * 1024
# The last bytes of a part, or before a place in a body, which name it.
NAME_BYTES: Final = 96
# What a bytes object has before its bytes, and behind them.
_HEAD_BYTES: Final = 33


def in_parts(data: bytes, part_bytes: int) -> list[bytes]:
    """Return bytes in parts."""
    return [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)]


def parts_until(known: list[bytes], size_bytes: int, more: bytes, part_bytes: int) -> list[bytes]:
    """Return the beginning of known parts, so many bytes, and more behind it, in parts again."""
    count, rest_bytes = divmod(size_bytes, part_bytes)
    if rest_bytes:
        more = known[count][:rest_bytes] + more
    return known[:count] + in_parts(more, part_bytes)


def size_of_parts(parts: list[bytes], part_bytes: int) -> int:
    """Return the memory that parts take."""
    if not parts:
        return 0
    return part_bytes * (len(parts) - 1) + len(parts[-1]) + _HEAD_BYTES * len(parts)


class BodyParts:
    """A long body. same: the parts that it has in common with a known one. rest: what follows."""

    def __init__(self, same: list[bytes], rest: bytes) -> None:
        self.same = same
        self.rest = rest

    def __len__(self) -> int:
        return BODY_PART_BYTES * len(self.same) + len(self.rest)


RawBody = bytes | BodyParts


def pieces(body: RawBody) -> list[bytes]:
    """Return a body's bytes as they are in memory."""
    return [body] if isinstance(body, bytes) else [*body.same, body.rest]


def whole(body: RawBody) -> bytes:
    """Return a body's bytes in one."""
    return body if isinstance(body, bytes) else b"".join(pieces(body))
