"""A body as it arrives: what a known one has, too, is compared and not kept; its bytes stay."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.http.body_pieces import BodyPieces
from tokenlane.parts import BODY_PART_BYTES, NAME_BYTES, in_parts

KNOWN = random.Random(1).randbytes(4 * BODY_PART_BYTES + 1_000)
PARTS = [part for part in in_parts(KNOWN, BODY_PART_BYTES) if len(part) == BODY_PART_BYTES]
NAMES = [part[-NAME_BYTES:] for part in PARTS]


def known_part(name: bytes, number: int) -> bytes | None:
    return PARTS[number] if name in NAMES and number < len(PARTS) else None


# Where known bytes end, parts end, and one byte to either side.
edges = st.sampled_from(range(0, len(KNOWN) + 1, BODY_PART_BYTES)).flatmap(
    lambda edge: st.sampled_from([edge - 1, edge, edge + 1, edge + NAME_BYTES, edge + 9_000])
)
places = (edges | st.integers(0, len(KNOWN))).map(lambda at: min(max(at, 0), len(KNOWN)))


@given(places, st.integers(0, 2_000), st.lists(places, max_size=6))
def test_a_body_is_its_bytes_wherever_it_leaves_the_known_one(
    same_bytes: int, more_bytes: int, cuts: list[int]
) -> None:
    body = KNOWN[:same_bytes] + bytes(more_bytes)
    pieces = BodyPieces(known_part)
    for number, (start, end) in enumerate(pairwise([0, *sorted(cuts), len(body)])):
        piece = body[start:end]
        pieces.add(memoryview(piece) if number % 2 else piece)
        assert pieces.size_bytes == min(end, len(body))
    assert b"".join([*pieces.same, *pieces.rest]) == body
    assert all(one is part for one, part in zip(pieces.same, PARTS, strict=False))
    assert len(pieces.same) == same_bytes // BODY_PART_BYTES


@pytest.mark.parametrize("at", [0, 1, BODY_PART_BYTES - NAME_BYTES - 1, 5_000])
def test_a_name_proves_nothing(at: int) -> None:
    """A part that ends as a known one does, and differs before."""
    other = bytearray(PARTS[0])
    other[at] ^= 1
    pieces = BodyPieces(known_part)
    for start in range(0, BODY_PART_BYTES, 4_096):
        pieces.add(bytes(other[start : start + 4_096]))
    assert not pieces.same
    assert b"".join(pieces.rest) == other


def test_one_byte_at_a_time() -> None:
    pieces = BodyPieces(known_part)
    body = KNOWN[: BODY_PART_BYTES + 10]
    for at in range(len(body)):
        pieces.add(body[at : at + 1])
    assert pieces.same == PARTS[:1]
    assert b"".join(pieces.rest) == body[-10:]
