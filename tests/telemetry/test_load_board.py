"""The load board: sums over workers, one writer per cell, a dead worker's work is gone."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenlane.fleet_state import Load
from tokenlane.telemetry.load_board import SharedBoard, create_board


@pytest.fixture
def descriptor() -> Iterator[int]:
    made = create_board(slots=3, workers=2)
    yield made
    os.close(made)


def test_workers_see_each_other(descriptor: int) -> None:
    first, second = SharedBoard(descriptor, 0), SharedBoard(descriptor, 1)
    first.add(2, 1, 500)
    second.add(2, 1, 70)
    second.add(0, 1, 0)
    watcher = SharedBoard(descriptor, None)
    for board in (first, second, watcher):
        assert [board.load(slot) for slot in range(3)] == [Load(1, 0), Load(0, 0), Load(2, 570)]
    second.add(2, 0, -70)
    assert repr(watcher) == "SharedBoard(1/0 0/0 2/500)"


def test_a_dead_workers_column_is_cleared(descriptor: int) -> None:
    for worker in (0, 1):
        SharedBoard(descriptor, worker).add(1, 1 + worker, 10)
    watcher = SharedBoard(descriptor, None)
    watcher.clear(0)
    assert watcher.load(1) == Load(2, 10)


def test_only_a_worker_writes(descriptor: int) -> None:
    with pytest.raises(TypeError):
        SharedBoard(descriptor, None).add(0, 1, 1)
    with pytest.raises(ValueError, match="no such worker"):
        SharedBoard(descriptor, 2)


@pytest.mark.parametrize("workers", [1, 3])
def test_other_gateways_count_for_routing_alone(workers: int) -> None:
    descriptor = create_board(slots=3, workers=workers, peers=True)
    try:
        last, watcher = SharedBoard(descriptor, workers - 1), SharedBoard(descriptor, None)
        last.add(1, 2, 30)
        watcher.place_peers(1, 5, 700)
        watcher.place_peers(2, 1, 0)
        assert last.columns((0, 1, 2)) == ([0, 7, 1], [0, 730, 0])
        assert watcher.own((0, 1, 2)) == ([0, 2, 0], [0, 30, 0])
        assert (watcher.load(1), watcher.peers(1)) == (Load(2, 30), Load(5, 700))
        assert last.others((0, 1, 2)) == [0, 5, 1]
        watcher.clear(workers - 1)
        assert last.columns((1,)) == ([5], [700])
        watcher.place_peers(1, 0, 0)
        assert last.columns((1,)) == ([0], [0])
        last.add(2, 1, 1)
        last.forget_peers()
        assert last.columns((0, 1, 2)) == ([0, 0, 1], [0, 0, 1])
    finally:
        os.close(descriptor)


def test_without_other_gateways_they_have_nothing(descriptor: int) -> None:
    assert SharedBoard(descriptor, None).peers(1) == Load(0, 0)
    assert SharedBoard(descriptor, 0).others((0, 1)) == ()


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-3, 9), st.integers(-99, 999))
    ),
)
def test_sums(workers: int, adds: list[tuple[int, int, int, int]]) -> None:
    descriptor = create_board(slots=5, workers=workers)
    try:
        boards = [SharedBoard(descriptor, worker) for worker in range(workers)]
        for worker, slot, requests, tokens in adds:
            boards[worker % workers].add(slot, requests, tokens)
        for slot in range(5):
            mine = [(add[2], add[3]) for add in adds if add[1] == slot]
            expected = Load(sum(add[0] for add in mine), sum(add[1] for add in mine))
            assert boards[0].load(slot) == expected
    finally:
        os.close(descriptor)
