"""The compact set against Python's own."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.routing.hashset import HashSet

# Bytes that repeat: a key may then be found across two others.
HASHES = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0, 1, 256, 2**56, 2**32, 0x0101010101010101, 0x0001000100010001, 2**64 - 1]
)


def packed(hashes: list[int]) -> bytes:
    return array("Q", hashes).tobytes()


def held(of: HashSet) -> list[int]:
    return sorted(one for bucket in of._buckets for one in memoryview(bucket).cast("Q"))


@given(st.lists(st.tuples(st.booleans(), st.lists(HASHES, max_size=40)), max_size=20))
def test_as_a_set(steps: list[tuple[bool, list[int]]]) -> None:
    ours, theirs = HashSet(), set[int]()
    for add, hashes in steps:
        if add:
            ours.add_all(packed(hashes))
            theirs |= set(hashes)
        else:
            ours.discard_all(packed(hashes))
            theirs -= set(hashes)
        assert held(ours) == sorted(theirs)
        assert len(ours) == len(theirs)


def test_it_grows_by_a_bucket_at_a_time_and_stays_small() -> None:
    ours = HashSet()
    hashes = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(20_000)]
    for at in range(0, len(hashes), 100):
        before = len(ours._buckets)
        ours.add_all(packed(hashes[at : at + 100]))
        assert len(ours._buckets) - before <= 5
    assert held(ours) == sorted(hashes)
    assert ours.size_bytes < 12 * len(hashes)
    assert max(map(len, ours._buckets)) < 100 * 8


@given(
    st.lists(HASHES, unique=True, max_size=100),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 110),
)
def test_the_first_unknown(hashes: list[int], known: int, low: int, guess: int) -> None:
    ours, blocks = HashSet(), packed(hashes)
    ours.add_all(blocks[: 8 * known])
    expected = max(min(known, len(hashes)), low)
    view = memoryview(blocks).cast("Q")
    assert ours.first_unknown(blocks, view, low) == expected
    assert ours.first_unknown(blocks, view, low, guess) == expected
    assert ours.first_unknown(blocks, view, low, expected) == expected
