"""A set of 64-bit hashes that costs about 11 bytes each, where Python's own costs about 100.

Linear hashing: hashes lie packed in buckets of some two dozen, and the table grows by splitting one
bucket at a time.

Invariants:
- No operation touches more than two buckets: there is no rehashing of the whole, so no stall.
- Hashes are spread already: their low bits choose the bucket.
"""

from typing import Final

# Hashes per bucket on average; above it a bucket is split. Some hold twice as many, and still fit
# the small blocks of Python's allocator.
_LOAD: Final = 24


class HashSet:
    """packed: native uint64, as tokenlane.tokens.blocks makes them."""

    __slots__ = ("_buckets", "_mask", "count")

    def __init__(self) -> None:
        self._buckets: list[bytes] = [b""]
        self._mask = 0
        self.count = 0

    def add_all(self, packed: bytes) -> None:
        """Adds them; about 1 µs each."""
        buckets = self._buckets
        count, mask, at = len(buckets), self._mask, 0
        for one in memoryview(packed).cast("Q"):
            key = packed[at : at + 8]
            at += 8
            place = one & mask
            if place >= count:
                place &= mask >> 1
            bucket = buckets[place]
            if key in bucket and _find(bucket, key) >= 0:
                continue
            buckets[place] = bucket + key
            self.count += 1
            if self.count > _LOAD * count:
                self._split()
                count, mask = len(buckets), self._mask

    def discard_all(self, packed: bytes) -> None:
        """Removes those that are there."""
        buckets = self._buckets
        at = 0
        for one in memoryview(packed).cast("Q"):
            key = packed[at : at + 8]
            at += 8
            place = self._place(one)
            bucket = buckets[place]
            found = _find(bucket, key)
            if found >= 0:
                buckets[place] = bucket[:found] + bucket[found + 8 :]
                self.count -= 1

    def first_unknown(self, packed: bytes, hashes: memoryview, low: int, guess: int = 0) -> int:
        """The first index from `low` on that is not in the set, where those that are come before
        those that are not. hashes: the "Q" view of `packed`. guess: what it may be; a right one
        spares the search, a wrong one costs two steps of it."""
        high = len(hashes)
        if low >= high or not self.count:
            return low
        buckets, mask = self._buckets, self._mask
        count, half = len(buckets), mask >> 1
        # What is looked at next: the guess from both sides, then the first one, then the middle.
        middle = guess - 1 if low < guess <= high else low
        while low < high:
            place = hashes[middle] & mask
            if place >= count:
                place &= half
            key = packed[8 * middle : 8 * middle + 8]
            found = buckets[place].find(key)
            if found > 0 and found & 7:
                found = _find(buckets[place], key)
            if found >= 0:
                low = middle + 1
                middle = low if low == guess and low < high else (low + high) // 2
            else:
                high = middle
                middle = low if middle == guess - 1 else (low + high) // 2
        return low

    @property
    def size_bytes(self) -> int:
        """Memory held, estimated: the hashes, a bytes object and a pointer for each bucket."""
        return 8 * self.count + 56 * len(self._buckets)

    def _place(self, one: int) -> int:
        place = one & self._mask
        return place if place < len(self._buckets) else place & (self._mask >> 1)

    def _split(self) -> None:
        """One bucket more: it takes its part of the bucket whose turn it is."""
        buckets = self._buckets
        new = len(buckets)
        if new > self._mask:
            self._mask = 2 * self._mask + 1
        mask = self._mask
        source = new & (mask >> 1)
        whole = buckets[source]
        stay: list[bytes] = []
        move: list[bytes] = []
        for at in range(0, len(whole), 8):
            key = whole[at : at + 8]
            one = memoryview(key).cast("Q")[0]
            (move if one & mask == new else stay).append(key)
        buckets[source] = b"".join(stay)
        buckets.append(b"".join(move))

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<HashSet {self.count} in {len(self._buckets)} buckets>"


def _find(bucket: bytes, key: bytes) -> int:
    """Where the key lies in the bucket, -1 if nowhere; never across two hashes."""
    found = bucket.find(key)
    while found >= 0 and found & 7:
        found = bucket.find(key, found + 1)
    return found
