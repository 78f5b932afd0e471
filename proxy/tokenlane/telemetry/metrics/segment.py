"""Metrics of the data path: one shared segment per worker, written lock-free, read by another.

Invariants:
- One writer (the loop thread of one worker), any number of readers. A store of one aligned
  8-byte cell cannot tear; a histogram read between two stores is at most one observation off.
- The journal (family, labels, cell) is append-only and its length is published last, so a
  reader never sees a torn entry. The segment outlives the worker: its counts are not lost.
- What is released is gone in one step: the journal without it is written to the other half, and the
  generation says which half counts. A reader that saw it change has read nothing, and reads again.
- The data path never gets an exception: when cells, journal or a family's limit are used up,
  new label sets share the family's overflow child, labelled `other`.
- `segment.counter(...)` and friends are dictionary lookups once bound, but bind once anyway.

Layout: 8 int64 of header | float64 cells | two halves of a journal, which is uint32 length, msgpack
[name, labels, cell] again and again.
"""

import contextlib
import mmap
import os
from math import inf
from typing import Final, TypeVar

import msgspec

from tokenlane.runtime.shared_memory import shared_file
from tokenlane.telemetry.metrics.departures import Labels
from tokenlane.telemetry.metrics.families import BY_NAME, FAMILIES, OTHER
from tokenlane.telemetry.metrics.family import Family

MAGIC: Final = 0x746C_6D65_7472_0002
HEADER_WORDS: Final = 8
# Pages that nothing was written to take no memory.
CELL_LIMIT: Final = 64 * 1024
JOURNAL_LIMIT_BYTES: Final = 1024 * 1024
# Header words. The bytes published are those of either half.
_MAGIC: Final = 0
_CELLS: Final = 1
_JOURNAL_BYTES: Final = 2
_GENERATION: Final = 3
_PUBLISHED_BYTES: Final = 4

_encode = msgspec.msgpack.Encoder().encode
_Key = tuple[str, tuple[str, ...]]
_Entry = tuple[str, tuple[str, ...], int]
_decode = msgspec.msgpack.Decoder(_Entry).decode


class Counter:
    """A child that only grows."""

    __slots__ = ("_cells", "_value")

    def __init__(self, cells: "memoryview[float]") -> None:
        self._cells = cells
        self._value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount` (>= 0)."""
        # With one writer the sum can be kept here and the cell only stored to, at half the cost.
        self._value = value = self._value + amount
        self._cells[0] = value

    def reach(self, total: float) -> None:
        """Grow to a total that is kept elsewhere; one that is smaller changes nothing."""
        self.inc(max(0.0, total - self._value))


class Gauge:
    """A child that goes up and down."""

    __slots__ = ("_cells",)

    def __init__(self, cells: "memoryview[float]") -> None:
        self._cells = cells

    def set(self, value: float) -> None:
        """Set the value."""
        self._cells[0] = value


def _bucket(bounds: tuple[float, ...], value: float) -> int:
    """Return the first bucket whose upper bound is not below `value`."""
    # Most of what is observed is short and in the first few: bisect's call costs more than they do.
    for bucket, bound in enumerate(bounds):
        if value <= bound:
            return bucket
    return len(bounds)


class Histogram:
    """A child that counts observations by bucket and sums them."""

    __slots__ = ("_above", "_bounds", "_bucket", "_cells", "_counts", "_sum", "_up_to")

    def __init__(self, cells: "memoryview[float]", bounds: tuple[float, ...]) -> None:
        self._cells = cells
        self._bounds = bounds
        # With one writer the counts are kept here and the cells only stored to (as in Counter).
        self._counts = [0.0] * (len(bounds) + 1)
        self._sum = 0.0
        # The last bucket and its bounds: what is observed next is mostly alike.
        self._bucket = 0
        self._above = self._up_to = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose upper bound is not below it."""
        cells, counts = self._cells, self._counts
        bucket = self._bucket if self._above < value <= self._up_to else self._find(value)
        counts[bucket] = count = counts[bucket] + 1.0
        cells[bucket + 1] = count
        self._sum = total = self._sum + value
        cells[0] = total

    def _find(self, value: float) -> int:
        bounds = self._bounds
        self._bucket = bucket = _bucket(bounds, value)
        self._above = bounds[bucket - 1] if bucket else -inf
        self._up_to = bounds[bucket] if bucket < len(bounds) else inf
        return bucket


Child = Counter | Gauge | Histogram
_C = TypeVar("_C", Counter, Gauge, Histogram)


def create_segment(
    cell_limit: int = CELL_LIMIT, journal_limit_bytes: int = JOURNAL_LIMIT_BYTES
) -> int:
    """Return a new, empty segment as a file descriptor to hand to one worker and keep for reading.
    journal_limit_bytes: of each half."""
    descriptor = shared_file(
        "tokenlane-metrics", (HEADER_WORDS + cell_limit) * 8 + 2 * journal_limit_bytes
    )
    with mmap.mmap(descriptor, 0) as memory, memoryview(memory).cast("q") as words:
        words[_CELLS] = cell_limit
        words[_JOURNAL_BYTES] = journal_limit_bytes
        words[_MAGIC] = MAGIC
    return descriptor


def _attach(descriptor: int) -> tuple[mmap.mmap, memoryview, "memoryview[float]", int]:
    """Return memory, header words, cells, and the journal's offset. Raise ValueError if it is not a
    segment."""
    memory = mmap.mmap(descriptor, 0)
    whole = memoryview(memory)
    head = whole[: HEADER_WORDS * 8].cast("q")
    if head[_MAGIC] != MAGIC:
        raise ValueError("not a metrics segment")
    journal_at = (HEADER_WORDS + head[_CELLS]) * 8
    return memory, head, whole[HEADER_WORDS * 8 : journal_at].cast("d"), journal_at


class MetricsSegment:
    """The writer's end, owned by one worker's loop."""

    def __init__(self, descriptor: int) -> None:
        self._memory, self._head, self._cells, self._journal_at = _attach(descriptor)
        self._next_cell = 0
        # Offsets of released cells, by how many a child takes.
        self._free: dict[int, list[int]] = {}
        self._children: dict[_Key, Child] = {}
        self._published: dict[_Key, tuple[int, bytes]] = {}
        self._counts: dict[str, int] = {}
        self._overflow: dict[str, Child] = {}
        for family in FAMILIES:
            if family.where == "worker":
                # Made first, while there is certainly room; readers skip labelled ones until used.
                child = self._make(family, (OTHER,) * len(family.labels))
                if child is None:
                    raise ValueError("the segment is too small for the families' overflow cells")
                self._overflow[family.name] = child

    @classmethod
    def private(cls) -> "MetricsSegment":
        """Return a segment of its own that nobody else reads: for tests and tools."""
        descriptor = create_segment()
        try:
            return cls(descriptor)
        finally:
            os.close(descriptor)

    def counter(self, family: Family, *labels: str) -> Counter:
        """Return the child for these label values, in the family's order."""
        return self._bind(Counter, family, labels)

    def gauge(self, family: Family, *labels: str) -> Gauge:
        """Return the child for these label values, in the family's order."""
        return self._bind(Gauge, family, labels)

    def histogram(self, family: Family, *labels: str) -> Histogram:
        """Return the child for these label values, in the family's order."""
        return self._bind(Histogram, family, labels)

    def _bind(self, kind: type[_C], family: Family, labels: tuple[str, ...]) -> _C:
        child = self._children.get((family.name, labels)) or self._new(family, labels)
        if not isinstance(child, kind):
            raise TypeError(f"{family.name} is a {family.kind}")
        return child

    def _new(self, family: Family, labels: tuple[str, ...]) -> Child:
        if family.where != "worker" or len(labels) != len(family.labels):
            raise TypeError(f"{family.name} is labelled {family.labels} by the {family.where}")
        count = self._counts.get(family.name, 0)
        child = self._make(family, labels) if count < family.child_limit else None
        if child is None:
            # Not remembered under its key: a flood of label values must not grow the dict.
            return self._overflow[family.name]
        self._counts[family.name] = count + 1
        return child

    def _make(self, family: Family, labels: tuple[str, ...]) -> Child | None:
        """Return a new child, published to readers; None if the segment is full."""
        free = self._free.get(family.cells)
        index = free[-1] if free else self._next_cell
        if index + family.cells > len(self._cells) or not self._publish(
            (family.name, labels, index)
        ):
            return None
        if free:
            free.pop()
        else:
            self._next_cell = index + family.cells
        child: Child
        # A view of its own: Python allocates an index beyond 256 at each store.
        cells = self._cells[index : index + family.cells]
        if family.kind == "counter":
            child = Counter(cells)
        elif family.kind == "gauge":
            child = Gauge(cells)
        else:
            child = Histogram(cells, family.buckets)
        self._children[family.name, labels] = child
        return child

    def _publish(self, entry: _Entry) -> bool:
        name, labels, index = entry
        payload = _encode(entry)
        payload = len(payload).to_bytes(4, "little") + payload
        half = self._head[_GENERATION] % 2
        used = self._head[_PUBLISHED_BYTES + half]
        if used + len(payload) > self._head[_JOURNAL_BYTES]:
            return False
        self._published[name, labels] = index, payload
        self._write(half, used, payload)
        return True

    def _write(self, half: int, used: int, payload: bytes) -> None:
        at = self._journal_at + half * self._head[_JOURNAL_BYTES] + used
        self._memory[at : at + len(payload)] = payload
        # The entries are whole before their length is: this order is what readers rely on.
        self._head[_PUBLISHED_BYTES + half] = used + len(payload)

    def release(self, gone: Labels) -> None:
        """Release every child that has one of these labels. No caller may still use one of them."""
        values = {value for _, value in gone}
        some = [key for key in self._children if not values.isdisjoint(key[1])]
        keys = [key for key in some if BY_NAME[key[0]].has_any(key[1], gone)]
        if not keys:
            return
        freed = []
        for key in keys:
            del self._children[key]
            self._counts[key[0]] -= 1
            freed.append((BY_NAME[key[0]].cells, self._published.pop(key)[0]))
        generation = self._head[_GENERATION] + 1
        self._write(generation % 2, 0, b"".join([one for _, one in self._published.values()]))
        self._head[_GENERATION] = generation
        # Only now, when no reader takes them for the last child's.
        for count, index in freed:
            for cell in range(index, index + count):
                self._cells[cell] = 0.0
            self._free.setdefault(count, []).append(index)


Sample = tuple[Family, tuple[str, ...], list[float]]


class SegmentReader:
    """The reader's end. Safe at any time, even while the writer dies."""

    def __init__(self, descriptor: int) -> None:
        self._memory, self._head, self._cells, self._journal_at = _attach(descriptor)
        self._generation = -1
        self._entries: list[tuple[Family, tuple[str, ...], int]] = []
        self._read_bytes = 0

    def samples(self) -> list[Sample]:
        """Return every published child with its cells: [value], or [sum, count per bucket...]."""
        while True:
            generation = self._head[_GENERATION]
            if generation != self._generation:
                self._generation, self._entries, self._read_bytes = generation, [], 0
            at = self._journal_at + generation % 2 * self._head[_JOURNAL_BYTES]
            published = self._head[_PUBLISHED_BYTES + generation % 2]
            news = self._memory[at + self._read_bytes : at + published]
            if self._head[_GENERATION] != generation:
                continue
            self._catch_up(news)
            found = [
                (family, labels, list(self._cells[index : index + family.cells]))
                for family, labels, index in self._entries
            ]
            if self._head[_GENERATION] == generation:
                return found

    def _catch_up(self, news: bytes) -> None:
        at = 0
        # Where stores may be seen out of order (aarch64), what is not whole yet is read next time.
        with contextlib.suppress(msgspec.DecodeError):
            while at < len(news):
                length = int.from_bytes(news[at : at + 4], "little")
                name, labels, index = _decode(news[at + 4 : at + 4 + length])
                family = BY_NAME.get(name)
                # A writer of another version may know families that this one does not.
                if family is not None:
                    self._entries.append((family, labels, index))
                at += 4 + length
        self._read_bytes += at

    def close(self) -> None:
        """Unmap the memory."""
        self._head.release()
        self._cells.release()
        # A reader holds no other view of the memory.
        self._memory.close()
