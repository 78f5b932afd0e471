"""Long bytes in parts: what two have in common is in memory once, and nothing else changes."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.parts import in_parts, parts_until

PART_BYTES = 64


@given(st.integers(0, 3 * PART_BYTES), st.data())
def test_what_goes_on_shares_the_parts_it_begins_with(size_bytes: int, data: st.DataObject) -> None:
    known = in_parts(random.Random(size_bytes).randbytes(size_bytes), PART_BYTES)
    kept_bytes = data.draw(st.integers(0, size_bytes))
    more = b"m" * data.draw(st.sampled_from([0, 1, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES]))
    made = parts_until(known, kept_bytes, more, PART_BYTES)
    assert b"".join(made) == b"".join(known)[:kept_bytes] + more
    assert all(len(part) == PART_BYTES for part in made[:-1])
    shared = kept_bytes // PART_BYTES
    assert all(one is other for one, other in zip(made, known[:shared], strict=False))
