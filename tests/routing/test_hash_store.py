"""Hashes are found at the places that were given for them; the reference is a dict."""

from hypothesis import given
from hypothesis import strategies as st

from tokenlane.routing.hash_store import BUFFER_BYTES, PIECE_BYTES, HashStore, part, place


def packed(first: int, count: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in range(first, first + count))


@given(st.lists(st.integers(0, PIECE_BYTES // 8), max_size=60))
def test_a_place_keeps_its_hashes(counts: list[int]) -> None:
    store, kept, first = HashStore(), dict[int, bytes](), 0
    for count in counts:
        hashes = packed(first, count)
        number = store.add(hashes)
        for at in range(0, count, 63):
            kept[place(number + at, min(63, count - at))] = hashes[8 * at : 8 * (at + 63)]
        first += count
    for at, hashes in kept.items():
        assert store.packed(at) == hashes
        count = len(hashes) // 8
        for low, high in ((0, count), (count // 3, count // 2), (count, count)):
            assert store.packed(part(at, low, high)) == hashes[8 * low : 8 * high]


def test_many_hashes_lie_in_several_buffers() -> None:
    store, hashes = HashStore(), packed(7, PIECE_BYTES // 8)
    places = [place(store.add(hashes), 63) for _ in range(3 * BUFFER_BYTES // PIECE_BYTES)]
    assert {store.packed(at) for at in places} == {hashes[: 8 * 63]}
    assert 3 * BUFFER_BYTES <= store.size_bytes <= 3.1 * BUFFER_BYTES


def test_few_hashes_take_little() -> None:
    store, total_bytes = HashStore(), 0
    assert store.packed(place(store.add(b""), 0)) == b""
    assert store.size_bytes == 0
    for count in range(1, 60):
        store.add(packed(1, count))
        total_bytes += 8 * count
        assert total_bytes <= store.size_bytes <= max(1024, 2 * total_bytes)
