"""Batches of events: both spellings, other versions' fields, and bytes that are none."""

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.kv_events.spelling import CLEARED, payload, removed, stored
from tokenlane.control.kv_events.batches import (
    Batch,
    Cleared,
    Garbled,
    Medium,
    Removed,
    Stored,
    decode,
)


def packed(*ids: int) -> bytes:
    return array("I", ids).tobytes()


TWO = stored([11, 12], None, [1, 2, 3, 4], 2)


@pytest.mark.parametrize("arrays", [False, True])
def test_both_spellings_say_the_same(arrays: bool) -> None:
    batch = decode(payload(TWO, removed([11]), CLEARED, arrays=arrays, ts=5.5, rank=1))
    assert batch == Batch(
        5.5,
        (
            Stored([11, 12], None, packed(1, 2, 3, 4), 2, readable=2),
            Removed([11]),
            Cleared(),
        ),
        rank=1,
    )


def test_what_a_server_of_version_0_32_sends() -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [2**64 - 1],
        "parent_block_hash": None,
        "token_ids": [7] * 32,
        "block_size": 32,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": "sess-1",
    }
    (read,) = decode(payload(event)).events
    assert read == Stored([2**64 - 1], None, packed(*[7] * 32), 32, 1, kind="full_attention")


def test_long_hashes_other_media_and_a_batch_without_a_rank() -> None:
    long = stored([b"x" * 32], b"y" * 32, [1, 2], 2, medium="CPU")
    batch = decode(msgspec.msgpack.encode([1.0, [long, removed([b"x" * 32], "CPU")]]))
    assert batch.rank is None
    assert batch.events == (
        Stored([b"x" * 32], b"y" * 32, packed(1, 2), 2, 1, Medium.HOST),
        Removed([b"x" * 32], Medium.HOST),
    )


@pytest.mark.parametrize(
    ("parent", "more", "readable", "salt"),
    [
        (None, {"extra_keys": [["S"], None]}, 2, "S"),
        (None, {"extra_keys": [[["cache_salt", "S"]], None]}, 2, "S"),
        (None, {"extra_keys": [["a", "S"], ["a"]], "lora_name": "a"}, 2, "S"),
        (None, {"lora_name": "a", "lora_id": 3}, 2, None),
        (None, {"lora_id": 3}, 0, None),
        (None, {"extra_keys": [None, [["image", 4]]]}, 1, None),
        (None, {"extra_keys": [[["image", 4]], None]}, 0, None),
        (9, {"extra_keys": [["S"], None]}, 0, None),
        (9, {"extra_keys": [None, None]}, 2, None),
        (None, {"extra_keys": [5, None]}, 0, None),
        (None, {"extra_keys": "no list"}, 2, None),
    ],
)
def test_what_else_decides_a_block(
    parent: Any, more: dict[str, Any], readable: int, salt: str | None
) -> None:
    (read,) = decode(payload(stored([11, 12], parent, [1, 2, 3, 4], 2, **more))).events
    assert isinstance(read, Stored)
    assert (read.readable, read.salt) == (readable, salt)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "FromTheFuture", "block_hashes": [1]},
        {"type": "BlockRemoved"},
        {"type": "BlockRemoved", "block_hashes": ["text"]},
        stored([1], None, [1, 2, 3], 2),
        stored([1], "text", [1, 2], 2),
        stored([1], None, [1, -2], 2),
        stored([1], None, [1, 2**32], 2),
        {**stored([1], None, [1, 2], 2), "token_ids": [1, "2"]},
        stored([], None, [], 2),
        stored([1], None, [], 0),
    ],
)
def test_an_event_that_cannot_be_read_is_counted(event: dict[str, Any]) -> None:
    batch = decode(payload(event, CLEARED))
    assert (batch.events, batch.unread) == ((Cleared(),), 1)


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", msgspec.msgpack.encode([1.0]), b"\x93\x01\x02\x03"]
)
def test_garbage_is_said_to_be_garbage(value: bytes) -> None:
    with pytest.raises(Garbled):
        decode(value)


@pytest.mark.parametrize(
    ("events", "garbled"),
    [
        ([CLEARED] * 8192, False),
        ([CLEARED] * 8193, True),
        ([removed([1] * 32_768)] * 2, False),
        ([removed([1] * 32_768)] * 3, True),
    ],
)
def test_a_message_holds_so_much(events: list[Any], garbled: bool) -> None:
    if not garbled:
        assert decode(payload(*events)).unread == 0
        return
    with pytest.raises(Garbled):
        decode(payload(*events))


_JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.binary() | _JUNK.map(msgspec.msgpack.encode))
def test_nothing_but_garbled_is_raised(value: bytes) -> None:
    try:
        decode(value)
    except Garbled:
        pass


@given(st.lists(st.tuples(st.sampled_from(list(TWO)), _JUNK), max_size=3))
def test_no_field_of_an_event_raises(wrong: list[tuple[str, Any]]) -> None:
    decode(payload({**TWO, "extra_keys": None, **dict(wrong)}))
