"""What gateways tell each other of their routing: bounded, the newest first."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.config.settings import RoutingSettings
from tokenlane.replay.run import FleetShape
from tokenlane.routing.lease import LocalBoard
from tokenlane.routing.router import Router
from tokenlane.routing.shared_prefixes import (
    PREFIX_LIMIT_BYTES,
    PrefixOutbox,
    RoutedPrefix,
    read,
)
from tokenlane.tokens.blocks import hashing_mark

MARK = hashing_mark(16)


def blocks(name: int, count: int = 4) -> bytes:
    return array("Q", [1000 * name + at for at in range(count)]).tobytes()


def told(outbox: PrefixOutbox, now: float) -> list[RoutedPrefix]:
    return read(outbox.take(now), MARK)


def test_what_was_routed_is_told_once_in_its_order() -> None:
    outbox = PrefixOutbox(MARK, 1000)
    outbox.offer("a:1", blocks(1))
    outbox.offer("b:1", blocks(1), "red")
    outbox.offer("a:1", blocks(2))
    outbox.offer("a:1", blocks(1))
    outbox.offer("a:1", b"")
    assert told(outbox, 0.0) == [
        RoutedPrefix("b:1", blocks(1), "red"),
        RoutedPrefix("a:1", blocks(2)),
        RoutedPrefix("a:1", blocks(1)),
    ]
    assert outbox.take(1.0) == b""


def test_the_newest_go_first_and_what_is_old_is_dropped() -> None:
    outbox = PrefixOutbox(MARK, 100)
    long = PREFIX_LIMIT_BYTES // 8
    for name in range(5):
        outbox.offer("r", blocks(name, 2 * long))
    assert outbox.dropped == 4  # a burst is two of them, less than their frames
    assert told(outbox, 0.0) == [RoutedPrefix("r", blocks(4, long))]
    outbox.offer("r", blocks(5, long))
    assert outbox.take(0.0) == b""
    outbox.offer("r", blocks(6, 1))
    assert told(outbox, 0.1) == [RoutedPrefix("r", blocks(6, 1))]
    assert told(outbox, 100.0) == [RoutedPrefix("r", blocks(5, long))]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 1100), st.sampled_from([0.0, 0.01, 0.3])),
        max_size=80,
    ),
    st.sampled_from([100, 2000, 50_000]),
)
def test_no_more_than_the_limit_is_told(
    offers: list[tuple[int, int, float]], limit_bytes_per_s: int
) -> None:
    outbox = PrefixOutbox(MARK, limit_bytes_per_s)
    now, sent_bytes, newest = 0.0, 0, None
    for name, count, pause_s in offers:
        now += pause_s
        outbox.offer("10.0.0.1:8000", blocks(name, count))
        newest = RoutedPrefix("10.0.0.1:8000", blocks(name, min(count, PREFIX_LIMIT_BYTES // 8)))
        batch = outbox.take(now)
        sent_bytes += len(batch) - 16 if batch else 0
        if batch:
            assert read(batch, MARK)[-1] == newest
        assert outbox._queued_bytes <= max(limit_bytes_per_s, 2 * PREFIX_LIMIT_BYTES)
    assert sent_bytes <= max(limit_bytes_per_s, 2 * PREFIX_LIMIT_BYTES) + limit_bytes_per_s * now


NESTED = b"\x93\xc4\x00\x90" + b"\x91" * 3000 + b"\xc0"


@pytest.mark.parametrize("batch", [b"", b"\xc1", b"\x92\xc4\x00\x90", b"\x93\x01\x02\x03", NESTED])
def test_what_is_no_batch_is_not_read(batch: bytes) -> None:
    assert read(batch, MARK) == []


def test_who_hashes_otherwise_is_not_read() -> None:
    outbox = PrefixOutbox(hashing_mark(32), 1000)
    outbox.offer("r", blocks(1))
    batch = outbox.take(0.0)
    assert read(batch, MARK) == []
    assert read(batch, hashing_mark(32)) == [RoutedPrefix("r", blocks(1))]
    assert len({hashing_mark(size, salt) for size in (16, 32) for salt in (b"", b"m")}) == 4


def test_what_is_read_is_known_to_the_router() -> None:
    router = Router(RoutingSettings(), LocalBoard())
    router.update(FleetShape(2, 100).state(16))
    outbox = PrefixOutbox(MARK, 1000)
    outbox.offer("r1", blocks(1), "red")
    for one in told(outbox, 0.0):
        router.learn(1, one.blocks, 5.0, one.tenant)
    assert router.index.match_all((0, 1), blocks(1, 6), "red") == [0, 4]
