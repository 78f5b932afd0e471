"""Segments: what is written is read, by another process too, and a full one never raises."""

import os
import signal
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.families import FAMILIES, OTHER
from tokenlane.telemetry.metrics.segment import (
    _GENERATION,
    _JOURNAL_BYTES,
    _PUBLISHED_BYTES,
    Counter,
    MetricsSegment,
    SegmentReader,
    create_segment,
)

Values = dict[tuple[str, tuple[str, ...]], list[float]]


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = create_segment()
    yield made
    os.close(made)


def read(descriptor: int) -> Values:
    reader = SegmentReader(descriptor)
    values = {(family.name, labels): cells for family, labels, cells in reader.samples()}
    reader.close()
    return values


def test_counter_gauge_histogram(descriptor: int) -> None:
    segment = MetricsSegment(descriptor)
    segment.counter(families.BAILS, "no-tokenizer").inc()
    segment.counter(families.BAILS, "no-tokenizer").inc(2)
    segment.gauge(families.CONNECTIONS).set(7)
    segment.gauge(families.CONNECTIONS).set(4)
    stage = segment.histogram(families.STAGE, "route")
    for value in (0.0, 0.00001, 0.000011, 1e9):
        stage.observe(value)
    values = read(descriptor)
    assert values[families.BAILS.name, ("no-tokenizer",)] == [3.0]
    assert values[families.CONNECTIONS.name, ()] == [4.0]
    total, *counts = values[families.STAGE.name, ("route",)]
    assert total == 1e9 + 0.000021
    # An upper bound belongs to its bucket, as Prometheus' `le` says.
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)


@given(st.lists(st.floats(0, 1000)))
def test_histogram_counts_like_the_definition(observed: list[float]) -> None:
    descriptor = create_segment()
    try:
        child = MetricsSegment(descriptor).histogram(families.TTFT, "m", "r:1")
        for value in observed:
            child.observe(value)
        total, *counts = read(descriptor)[families.TTFT.name, ("m", "r:1")]
    finally:
        os.close(descriptor)
    bounds = families.TTFT.buckets
    expected = [0.0] * (len(bounds) + 1)
    for value in observed:
        expected[bisect_left(bounds, value)] += 1
    assert counts == expected
    assert total == pytest.approx(sum(observed))


def test_the_same_labels_are_the_same_child(descriptor: int) -> None:
    segment = MetricsSegment(descriptor)
    assert segment.counter(families.RETRIES, "a") is segment.counter(families.RETRIES, "a")
    assert segment.counter(families.RETRIES, "a") is not segment.counter(families.RETRIES, "b")


@pytest.mark.parametrize(
    ("bind", "why"),
    [
        (lambda segment: segment.gauge(families.RETRIES, "x"), "wrong kind"),
        (lambda segment: segment.counter(families.RETRIES), "too few labels"),
        (lambda segment: segment.counter(families.RETRIES, "x", "y"), "too many labels"),
        (lambda segment: segment.gauge(families.REPLICA_UP, "x"), "not the worker's"),
    ],
)
def test_misuse_is_a_bug_seen_at_binding(
    bind: Callable[[MetricsSegment], object], why: str, descriptor: int
) -> None:
    with pytest.raises(TypeError):
        bind(MetricsSegment(descriptor))


@pytest.mark.row("S7")
def test_a_family_past_its_limit_counts_as_other(descriptor: int) -> None:
    segment = MetricsSegment(descriptor)
    limit = families.BAILS.child_limit
    for index in range(limit + 50):
        segment.counter(families.BAILS, f"reason-{index}").inc()
    values = read(descriptor)
    assert values[families.BAILS.name, (OTHER,)] == [50.0]
    assert sum(cells[0] for (name, _), cells in values.items() if name == families.BAILS.name) == (
        limit + 50
    )
    assert len(segment._children) < limit + len(FAMILIES)


def overflow_bytes() -> int:
    """What the journal of a segment takes before anything is counted."""
    segment = MetricsSegment.private()
    return int(segment._head[_PUBLISHED_BYTES])


@pytest.mark.parametrize(
    ("spare_cells", "spare_journal_bytes"), [(30, 1 << 16), (4096, 50), (4096, 700)]
)
def test_a_full_segment_never_raises(spare_cells: int, spare_journal_bytes: int) -> None:
    cells = sum(family.cells for family in FAMILIES if family.where == "worker")
    journal_bytes = (overflow_bytes() + spare_journal_bytes) // 8 * 8 + 8  # whole words
    descriptor = create_segment(cells + spare_cells, journal_bytes)
    try:
        segment = MetricsSegment(descriptor)
        for index in range(300):
            segment.counter(families.REQUESTS, str(index), "200", "ok", "m").inc()
            segment.histogram(families.TOKENIZE, "threads", str(index)).observe(1.0)
        values = read(descriptor)
    finally:
        os.close(descriptor)
    requests = [cells for (name, _), cells in values.items() if name == families.REQUESTS.name]
    assert sum(cells[0] for cells in requests) == 300
    assert len(requests) < 300


def test_a_segment_too_small_to_start_with_is_refused() -> None:
    descriptor = create_segment(8, 64)
    try:
        with pytest.raises(ValueError, match="too small"):
            MetricsSegment(descriptor)
    finally:
        os.close(descriptor)


def test_something_else_is_not_a_segment() -> None:
    descriptor = create_segment()
    try:
        os.pwrite(descriptor, bytes(8), 0)
        with pytest.raises(ValueError, match="not a metrics segment"):
            SegmentReader(descriptor)
    finally:
        os.close(descriptor)


WRITER = """
import sys
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import MetricsSegment

segment = MetricsSegment(int(sys.argv[1]))
print("up", flush=True)
index = 0
while True:
    index += 1
    segment.counter(families.BAILS, f"reason-{index % 100}").inc()
    segment.histogram(families.STAGE, "route").observe(0.001)
    if index == 50:
        print("going", flush=True)
"""


def test_another_process_writes_and_is_killed(descriptor: int) -> None:
    """Read while it writes: entries are whole, counts never go back; all is there after SIGKILL."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(descriptor)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    reader = SegmentReader(descriptor)
    with writer:
        assert writer.stdout.readline() == b"up\n"
        assert writer.stdout.readline() == b"going\n"
        seen: Values = {}
        for _ in range(200):
            now = {(family.name, labels): cells for family, labels, cells in reader.samples()}
            assert set(seen) <= set(now)
            for key, cells in seen.items():
                assert all(a <= b for a, b in zip(cells, now[key], strict=True)), key
            seen = now
        writer.send_signal(signal.SIGKILL)
    after = {(family.name, labels): cells for family, labels, cells in reader.samples()}
    bails = sum(cells[0] for (name, _), cells in after.items() if name == families.BAILS.name)
    observed = sum(after[families.STAGE.name, ("route",)][1:])
    assert bails >= 50
    assert bails - observed in (0, 1)
    reader.close()


def test_private_segment_is_usable() -> None:
    child = MetricsSegment.private().counter(families.RETRIES, "x")
    child.inc()
    assert isinstance(child, Counter)


def test_what_is_released_is_gone_and_its_cells_are_used_again(descriptor: int) -> None:
    segment, reader = MetricsSegment(descriptor), SegmentReader(descriptor)

    def shown() -> Values:
        return {(family.name, labels): cells for family, labels, cells in reader.samples()}

    for replica in ("a", "b"):
        segment.histogram(families.TTFT, "m", replica).observe(1.0)
    segment.counter(families.RETRIES, "a").inc()  # a reason, not the replica of this name
    kept = segment.histogram(families.TTFT, "m", "b")
    before = shown()
    segment.release({("replica", "a"), ("model", "none-such")})
    assert shown() == {key: cells for key, cells in before.items() if key[1] != ("m", "a")}
    used = segment._next_cell
    assert sum(segment.histogram(families.TTFT, "m", "c")._counts) == 0
    assert segment._next_cell == used
    kept.observe(1.0)
    after = shown()
    assert sum(after[families.TTFT.name, ("m", "c")]) == 0
    assert sum(after[families.TTFT.name, ("m", "b")][1:]) == 2
    assert after.keys() == {key for key in before if key[1] != ("m", "a")} | {
        (families.TTFT.name, ("m", "c"))
    }
    reader.close()


def test_replicas_may_come_and_go_for_ever(descriptor: int) -> None:
    """Neither cells nor journal nor the family's limit are used up by those that left."""
    segment = MetricsSegment(descriptor)
    for number in range(3 * families.TTFT.child_limit):
        segment.histogram(families.TTFT, "m", f"replica-{number}").observe(1.0)
        segment.release({("replica", f"replica-{number}")})
    assert sum(read(descriptor)[families.TTFT.name, (OTHER, OTHER)]) == 0


RELEASER = """
import sys
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import MetricsSegment

segment = MetricsSegment(int(sys.argv[1]))
number = 0
while True:
    number += 1
    segment.counter(families.PROMPT_TOKENS, "m", "stays").inc()
    for length in range(4):
        segment.histogram(families.TTFT, "m", "r" * (number % 30 + length)).observe(2.0)
    segment.release({("replica", "r" * (number % 30 + length)) for length in range(4)})
    if number == 50:
        print("going", flush=True)
"""


def test_releases_are_read_as_if_at_one_moment(descriptor: int) -> None:
    """By another process, while they happen: no child has what was another's."""
    writer = subprocess.Popen(
        [sys.executable, "-c", RELEASER, str(descriptor)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    reader = SegmentReader(descriptor)
    stays = 0.0
    with writer:
        assert writer.stdout.readline() == b"going\n"
        for _ in range(500):
            for family, labels, cells in reader.samples():
                if family is families.PROMPT_TOKENS and labels == ("m", "stays"):
                    assert cells[0] >= stays
                    stays = cells[0]
                elif family is families.TTFT:
                    assert cells[0] in {0.0, 2.0}
                    assert sum(cells[1:]) in {0.0, 1.0}
        writer.send_signal(signal.SIGKILL)
    assert stays > 50
    reader.close()


def test_an_entry_that_is_seen_after_its_length_is_read_later(descriptor: int) -> None:
    writer, reader = MetricsSegment(descriptor), SegmentReader(descriptor)
    before = len(reader.samples())
    half = _PUBLISHED_BYTES + writer._head[_GENERATION] % 2
    published = writer._head[half]
    at = writer._journal_at + writer._head[_GENERATION] % 2 * writer._head[_JOURNAL_BYTES]
    writer.counter(families.NAMED, "a", "b").inc()
    late = writer._head[half] - published
    entry = writer._memory[at + published : at + published + late]
    writer._memory[at + published : at + published + late] = bytes(late)
    assert len(reader.samples()) == before
    writer._memory[at + published : at + published + late] = entry
    assert len(reader.samples()) == before + 1
    reader.close()
