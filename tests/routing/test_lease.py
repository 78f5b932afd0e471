"""Leases: whatever happens to the requests, the counts are those of the requests alive."""

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tokenlane.fleet_state import Load
from tokenlane.routing.lease import Lease, LocalBoard
from tokenlane.routing.progress import Progress

SLOTS = (0, 1, 2)


class Leases(RuleBasedStateMachine):
    """Requests begin, get first bytes (some twice), end well, by error or by cancellation."""

    alive = Bundle("alive")

    def __init__(self) -> None:
        super().__init__()
        self.board = LocalBoard()
        self.expected: dict[int, tuple[Lease, int]] = {}

    @rule(target=alive, slot=st.sampled_from(SLOTS), tokens=st.integers(0, 10**6))
    def enter(self, slot: int, tokens: int) -> Lease:
        lease = Lease(self.board, slot, tokens)
        lease.first_byte()  # before it is entered it counts for nothing
        lease.__enter__()
        self.expected[id(lease)] = lease, tokens
        return lease

    @rule(lease=alive)
    def first_byte(self, lease: Lease) -> None:
        lease.first_byte()
        self.expected[id(lease)] = lease, 0

    @rule(
        lease=consumes(alive),
        error=st.sampled_from([None, ValueError(), asyncio.CancelledError(), GeneratorExit()]),
    )
    def leave(self, lease: Lease, error: BaseException | None) -> None:
        lease.__exit__(type(error) if error else None, error, None)
        del self.expected[id(lease)]

    @invariant()
    def counts_are_those_of_the_living(self) -> None:
        for slot in SLOTS:
            living = [tokens for lease, tokens in self.expected.values() if lease.slot == slot]
            assert self.board.load(slot) == Load(requests=len(living), queued_tokens=sum(living))


TestLeases = Leases.TestCase


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
def test_an_error_inside_ends_it_and_passes(error: type[BaseException]) -> None:
    board = LocalBoard()

    def fail() -> None:
        assert board.load(1) == Load(requests=1, queued_tokens=500)
        raise error

    with pytest.raises(error), Lease(board, 1, 500):
        fail()
    assert board.load(1) == Load(requests=0, queued_tokens=0)


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    board = LocalBoard()
    inside = asyncio.Event()

    async def request() -> None:
        with Lease(board, 0, 100):
            inside.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(request())
        await inside.wait()
        assert board.load(0) == Load(requests=1, queued_tokens=100)
        task.cancel()
    assert board.load(0) == Load(requests=0, queued_tokens=0)


def test_a_lease_is_entered_once() -> None:
    board = LocalBoard()
    with Lease(board, 0, 1) as lease, pytest.raises(RuntimeError), lease:
        pass
    assert board.load(0).requests == 0


def test_an_answer_without_a_first_token_frees_the_queue_and_teaches_nothing() -> None:
    board, progress = LocalBoard(), Progress()
    for at in range(20):
        with Lease(board, 0, 1000, progress=progress, now=float(at)) as lease:
            lease.first_byte(at + 0.5)
    with Lease(board, 0, 50_000, progress=progress, now=30.0) as lease:
        lease.first_byte()
        assert board.load(0) == Load(requests=1, queued_tokens=0)
        with Lease(board, 0, 4000, progress=progress, now=30.0):
            assert progress.left([0], [4000], 31.0) == [2000]
    assert progress.rate(0) == pytest.approx(2000)


def test_repr_shows_live_counts() -> None:
    board = LocalBoard()
    with Lease(board, 3, 7):
        assert repr(board) == "<LocalBoard {3: (1, 7)}>"
