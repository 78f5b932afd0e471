"""What one publisher does costs the account of no other: real sockets, scripted publishers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import zmq
import zmq.asyncio

from tests.control.kv_events.publisher import BLOCK, LIMIT_S, until
from tokenlane.control.kv_events import sockets
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.publishers import EventEndpoint
from tokenlane.control.kv_events.sockets import Subscription
from tokenlane.fleet_state import Standing

PUBLISHERS, AT_ONCE = 6, 2
# Long enough for all questions to be there, were they asked at the same time.
ANSWER_S = 0.05
END = (b"\xff" * 8, b"")

# Sends the answer to a question, a number and a payload at a time.
Send = Callable[[bytes, bytes], Awaitable[None]]
Publisher = Callable[[Send], Awaitable[None]]


def message(number: int, key: int = 1) -> tuple[bytes, bytes]:
    """One that says that a block is stored."""
    event = ["BlockStored", [key], None, [key] * BLOCK, BLOCK, None]
    return number.to_bytes(8, "big"), msgspec.msgpack.encode([0.0, [event], 0])


class Scene:
    """Publishers, each asked by a subscription."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self.context = zmq.asyncio.Context()
        self.beginnings = asyncio.Semaphore(AT_ONCE)
        self.tasks: list[asyncio.Task[None]] = []

    def follow(self, publisher: Publisher, check_interval_s: float = 0.05) -> Subscription:
        """Nobody is at its live address."""
        socket = self.context.socket(zmq.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        endpoint = EventEndpoint(0, "tcp://127.0.0.1:9", replay=f"tcp://127.0.0.1:{port}")
        account = PublisherAccount(
            0, 0, ranks=1, model="demo", block_tokens=BLOCK, limit_blocks=1000, can_replay=True
        )
        subscription = Subscription(
            self.context, endpoint, account, lambda: None, self.beginnings,
            check_interval_s=check_interval_s, answer_deadline_s=LIMIT_S,
        )  # fmt: skip
        self.tasks += [
            self._group.create_task(self._answer(socket, publisher)),
            self._group.create_task(subscription.run()),
        ]
        return subscription

    @staticmethod
    async def _answer(socket: zmq.asyncio.Socket, publisher: Publisher) -> None:
        async def send(who: bytes, number: bytes, payload: bytes) -> None:
            await socket.send_multipart([who, b"", b"", number, payload])

        while True:
            who, *_ = await socket.recv_multipart()
            await publisher(partial(send, who))


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        it = Scene(group)
        try:
            yield it
        finally:
            for task in it.tasks:
                task.cancel()
            await asyncio.wait(it.tasks)
            it.context.destroy(linger=0)


def keys(subscription: Subscription) -> set[int | bytes]:
    return set(subscription.account.ledger.contents().shelves[Medium.GPU])


def complete(subscription: Subscription) -> bool:
    return subscription.account.standing is Standing.COMPLETE


async def good(send: Send) -> None:
    for part in (message(0), END):
        await send(*part)


async def test_few_answer_with_all_they_kept_at_the_same_time() -> None:
    asked = most = 0

    async def slow(send: Send) -> None:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(ANSWER_S)
        asked -= 1
        await good(send)

    async with scene() as it:
        followed = [it.follow(slow, LIMIT_S) for _ in range(PUBLISHERS)]
        await until(lambda: all(map(complete, followed)))
        assert [keys(one) for one in followed] == [{1}] * PUBLISHERS
    assert most == AT_ONCE


async def test_an_answer_without_an_end_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sockets, "BEGINNING_LIMIT_S", 0.1)

    async def endless(send: Send) -> None:
        while True:
            await send(*message(0))
            await asyncio.sleep(0.01)

    async with scene() as it:
        for _ in range(AT_ONCE):
            it.follow(endless)
        one = it.follow(good)
        await until(lambda: complete(one))


async def test_a_number_that_is_none_ends_an_answer() -> None:
    asked = 0

    async def odd(send: Send) -> None:
        nonlocal asked
        asked += 1
        if asked <= 2:
            await send(b"\x01" + bytes(8), message(0)[1])
        else:
            await good(send)

    async with scene() as it:
        one = it.follow(odd)
        await until(lambda: complete(one))
        assert keys(one) == {1}
        assert not one.account.lost_messages


async def test_what_a_process_said_that_is_gone_is_not_the_next_ones() -> None:
    asked = 0

    async def restarted(send: Send) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:  # its buffer does not reach back, and it dies while it answers
            for number in range(500, 700):
                await send(*message(number, number))
        else:
            for number in range(3):
                await send(*message(number, number + 1))
            await send(*END)

    async with scene() as it:
        one = it.follow(restarted)
        async with asyncio.timeout(LIMIT_S):
            while one.account.sequence.expected < 550:  # noqa: ASYNC110 - with more on its way
                await asyncio.sleep(0)
        one.reset()
        await until(lambda: complete(one))
        assert keys(one) == {1, 2, 3}
