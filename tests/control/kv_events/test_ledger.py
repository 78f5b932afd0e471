"""The ledger against an engine that counts its own copies, in block sizes of every proportion."""

from array import array
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.control.kv_events.spelling import CLEARED, engine_keys, payload, removed, stored
from tokenlane.control.kv_events.batches import Medium, decode
from tokenlane.control.kv_events.ledger import Ledger, LedgerContents
from tokenlane.tokens.blocks import block_hashes
from tokenlane.tokens.keys import salt_of


def hashes(ids: list[int], block_tokens: int, model: str = "m", salt: str = "") -> set[bytes]:
    packed = block_hashes(array("I", ids).tobytes(), block_tokens, salt_of(model, salt))
    return {packed[at : at + 8] for at in range(0, len(packed), 8)}


def split(packed: bytes) -> set[bytes]:
    return {packed[at : at + 8] for at in range(0, len(packed), 8)}


def held(ledger: Ledger, medium: Medium = Medium.GPU) -> set[bytes]:
    return split(b"".join(ledger.pieces(medium)))


def feed(ledger: Ledger, *events: dict[str, Any], arrays: bool = False) -> None:
    batch = decode(payload(*events, arrays=arrays))
    assert not batch.unread
    for event in batch.events:
        ledger.apply(event)


@pytest.mark.parametrize(("theirs", "ours"), [(16, 16), (32, 16), (16, 32), (16, 24), (24, 16)])
def test_the_chain_is_ours_in_our_block_size(theirs: int, ours: int) -> None:
    ledger = Ledger("m", ours, 1000)
    ids = list(range(1, 200))
    keys = engine_keys(ids, theirs)
    for at, key in enumerate(keys):
        parent = keys[at - 1] if at else None
        feed(ledger, stored([key], parent, ids[at * theirs : at * theirs + theirs], theirs))
    assert held(ledger) == hashes(ids[: len(keys) * theirs], ours)
    whole = Ledger("m", ours, 1000)
    feed(whole, stored(keys, None, ids[: len(keys) * theirs], theirs))
    assert held(whole) == held(ledger)
    for key in reversed(keys):
        feed(ledger, removed([key]))
    assert held(ledger) == set()


def test_salts_and_adapters_have_chains_of_their_own() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4]
    feed(ledger, stored([1, 2], None, ids, 2))
    feed(ledger, stored([3], None, ids[:2], 2, extra_keys=[["S"]]))
    feed(ledger, stored([4], 3, ids[2:], 2, extra_keys=[None]))
    feed(ledger, stored([5, 6], None, ids, 2, lora_name="a", extra_keys=[["a"], ["a"]]))
    assert held(ledger) == hashes(ids, 2) | hashes(ids, 2, salt="S") | hashes(ids, 2, "a")


def test_a_block_is_held_until_its_last_copy_is_gone() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2]
    for _ in range(3):
        feed(ledger, stored([1], None, ids, 2))
    for left in (2, 1, 0):
        assert held(ledger) == hashes(ids, 2)
        feed(ledger, removed([1]))
        assert bool(held(ledger)) == bool(left)
    feed(ledger, removed([1]))


def test_a_report_of_reused_blocks_is_no_copy() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4]
    feed(ledger, stored([1, 2], None, ids, 2), stored([1, 2], None, ids, 2))
    feed(ledger, removed([2]), removed([1]))
    assert held(ledger) == set()


def test_a_report_that_names_more_than_is_known_is_no_copy_of_the_rest() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4, 5, 6]
    images = {"extra_keys": [None, None, [["image", 1]]]}
    feed(ledger, stored([1], None, ids[:2], 2))
    for _ in range(2):
        feed(ledger, stored([1, 2, 3], None, ids, 2, **images))
        assert held(ledger) == hashes(ids[:4], 2)
    feed(ledger, removed([3, 2, 1]))
    assert held(ledger) == set()


def test_media_are_kept_apart_and_know_each_others_parents() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4]
    feed(ledger, stored([1], None, ids[:2], 2, medium="CPU"))
    feed(ledger, stored([2], 1, ids[2:], 2))
    assert held(ledger) == hashes(ids, 2) - hashes(ids[:2], 2)
    assert held(ledger, Medium.HOST) == hashes(ids[:2], 2)


def test_blocks_off_the_gpu_are_known_by_what_the_gpu_told() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4]
    copied = [stored([key], None, [], key - 1, medium="CPU") for key in (1, 2, 3)]
    feed(ledger, stored([1, 2], None, ids, 2), *copied)
    assert held(ledger, Medium.HOST) == hashes(ids, 2)
    assert ledger.orphans == 1
    feed(ledger, removed([2, 1]))
    assert (held(ledger), held(ledger, Medium.HOST)) == (set(), hashes(ids, 2))
    # A copy in yet other memory, and a sequence that goes on from what came back.
    feed(ledger, stored([2], None, [], 0, medium="STORAGE"), removed([2], "CPU"))
    feed(ledger, stored([4], 2, [5, 6], 2))
    assert held(ledger) == hashes([*ids, 5, 6], 2) - hashes(ids, 2)
    feed(ledger, removed([1, 2], "CPU"))
    assert held(ledger, Medium.HOST) == set()


def test_a_window_that_slides_drops_nothing_of_the_prefix() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2]
    feed(ledger, stored([1], None, ids, 2, group_idx=0, kv_cache_spec_kind="full_attention"))
    feed(ledger, stored([1], None, ids, 2, group_idx=1, kv_cache_spec_kind="sliding_window"))
    feed(ledger, {**removed([1]), "group_idx": 1})
    assert held(ledger) == hashes(ids, 2)
    feed(ledger, {**removed([1]), "group_idx": 0})
    assert held(ledger) == set()


def test_groups_beyond_all_reason_are_left_out() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2]
    for group in (1, 64, 10**6):
        feed(ledger, stored([1], None, ids, 2, group_idx=group, kv_cache_spec_kind="mamba"))
    feed(ledger, stored([2], None, ids, 2, group_idx=64))
    assert ledger.contents().other_groups == {1}
    assert held(ledger) == set()
    ledger.reset()  # the next process may have a prefix where the last one had a window
    feed(ledger, stored([1], None, ids, 2, group_idx=1))
    assert held(ledger) == hashes(ids, 2)


def test_unknown_parents_and_unreadable_blocks_are_left_out() -> None:
    ledger = Ledger("m", 2, 1000)
    feed(ledger, stored([2], 1, [3, 4], 2), removed([2]))
    feed(ledger, stored([5, 6], None, [1, 2, 3, 4], 2, extra_keys=[None, [["image", 1]]]))
    feed(ledger, stored([7], 6, [5, 6], 2))
    assert held(ledger) == hashes([1, 2], 2)
    assert (ledger.orphans, ledger.unreadable) == (2, 1)


@pytest.mark.parametrize("long_keys", [False, True])
@pytest.mark.parametrize("ours", [2, 3])
def test_what_one_ledger_holds_another_goes_on_with(ours: int, long_keys: bool) -> None:
    def key(number: int) -> int | bytes:
        return number.to_bytes(32) if long_keys else number

    one, ids = Ledger("m", ours, 1000), [1, 2, 3, 4]
    feed(one, stored([key(1), key(2)], None, ids, 2), stored([key(1)], None, ids[:2], 2))
    feed(one, stored([key(2)], None, [], 0, medium="CPU"))
    feed(one, stored([key(9)], None, ids, 4, group_idx=1, kv_cache_spec_kind="sliding_window"))
    packed = msgspec.msgpack.encode(one.contents())
    other, small = Ledger("m", ours, 1000), Ledger("m", ours, 2)
    assert other.restore(msgspec.msgpack.decode(packed, type=LedgerContents))
    assert not small.restore(msgspec.msgpack.decode(packed, type=LedgerContents))
    assert not small.restore(LedgerContents({Medium.GPU: {1: b"seven b"}}, [], set()))
    assert (small.held_blocks(Medium.GPU), other.take()) == (0, {})
    one.take()
    later = (
        stored([key(9)], None, ids, 4, group_idx=1),
        stored([key(3)], key(2), [5, 6], 2),
        removed([key(1)]),
        removed([key(2)]),
        removed([key(2)], "CPU"),
    )
    for event in later:
        feed(one, event)
        feed(other, event)
        assert one.contents() == other.contents()
        assert one.take() == other.take()
    assert held(other)


def test_the_limit_holds() -> None:
    ledger = Ledger("m", 1, 5)
    feed(ledger, stored(list(range(1, 9)), None, [7] * 8, 1))
    assert (ledger.held_blocks(Medium.GPU), ledger.left_out) == (5, 3)
    assert ledger.size_bytes > 0


def test_changes_are_net() -> None:
    ledger, ids = Ledger("m", 2, 1000), [1, 2, 3, 4]
    feed(ledger, stored([1, 2], None, ids, 2), removed([2]))
    (change,) = ledger.take().values()
    assert (split(change.stored), change.removed) == (hashes(ids[:2], 2), b"")
    feed(ledger, removed([1]), stored([1], None, ids[:2], 2))
    assert ledger.take() == {}
    feed(ledger, CLEARED)
    (change,) = ledger.take().values()
    assert (change.stored, split(change.removed)) == (b"", hashes(ids[:2], 2))


@st.composite
def _prompts(draw: st.DrawFn) -> list[int]:
    """Token ids, whole engine blocks of two. They part ways inside of blocks, too."""
    return [draw(st.integers(0, 1)) for _ in range(2 * draw(st.integers(1, 3)))]


@given(
    st.lists(st.tuples(_prompts(), st.sampled_from(["store", "evict", "clear"])), max_size=30),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.booleans(),
)
@example([([0, 0], "store"), ([0, 1], "store"), ([0, 0], "evict")], 1, False, False)
@example([([0, 0, 0, 0], "store"), ([0, 0, 0, 1], "store"), ([0, 0, 0, 0], "evict")], 3, True, True)
def test_equal_to_an_engine_that_evicts_from_the_tail(
    steps: list[tuple[list[int], str]], ours: int, arrays: bool, moves: bool
) -> None:
    """Prompts come and go as physical copies; what is held is what some copy holds whole.
    moves: after each step another ledger goes on."""
    ledger = Ledger("m", ours, 10_000)
    size = 2
    copies: Counter[tuple[int, ...]] = Counter()
    seen: set[bytes] = set()
    for ids, step in steps:
        keys = engine_keys(ids, size)
        # Up to and with each of its blocks.
        upto = [tuple(ids[:end]) for end in range(size, len(ids) + 1, size)]
        if step == "clear":
            copies.clear()
            feed(ledger, CLEARED, arrays=arrays)
        elif step == "store":
            # What is held is reused, but the last block of a prompt is always computed.
            reused = 0
            while reused < len(keys) - 1 and copies[upto[reused]]:
                reused += 1
            parent = keys[reused - 1] if reused else None
            feed(ledger, stored(keys[reused:], parent, ids[reused * size :], size), arrays=arrays)
            copies.update(upto[reused:])
        elif copies[upto[-1]] and not any(
            len(one) > len(ids) and one[: len(ids)] == upto[-1] and count
            for one, count in copies.items()
        ):
            copies[upto[-1]] -= 1
            feed(ledger, removed([keys[-1]]), arrays=arrays)
        expected: set[bytes] = set()
        for blocks, count in copies.items():
            if count:
                expected |= hashes(list(blocks), ours)
        assert held(ledger) == expected
        for change in ledger.take().values():
            seen = (seen | split(change.stored)) - split(change.removed)
        assert seen == expected
        if moves:
            contents = ledger.contents()
            ledger = Ledger("m", ours, 10_000)
            assert ledger.restore(contents)
