"""Publishers are asked for what they kept a few at a time."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import zmq
import zmq.asyncio

from tests.control.kv_events.publisher import BLOCK, LIMIT_S, until
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.publishers import EventEndpoint
from tokenlane.control.kv_events.sockets import Subscription
from tokenlane.fleet_state import Standing

PUBLISHERS, AT_ONCE = 6, 2
# Long enough for all questions to be there, were they asked at the same time.
ANSWER_S = 0.05
END = b"\xff" * 8


class Publishers:
    """Answer with one message each, after a while. asked: how many are at it."""

    def __init__(self, context: zmq.asyncio.Context) -> None:
        self._context = context
        self.asked = self.most = 0

    async def run(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            who, *_ = await socket.recv_multipart()
            self.asked += 1
            self.most = max(self.most, self.asked)
            await asyncio.sleep(ANSWER_S)
            self.asked -= 1
            event = ["BlockStored", [1], None, list(range(BLOCK)), BLOCK, None]
            for number, payload in (
                (bytes(8), msgspec.msgpack.encode([0.0, [event], 0])),
                (END, b""),
            ):
                await socket.send_multipart([who, b"", b"", number, payload])

    def bound(self) -> tuple[zmq.asyncio.Socket, EventEndpoint]:
        """One of them. Nobody is at its live address."""
        socket = self._context.socket(zmq.ROUTER)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        return socket, EventEndpoint(0, "tcp://127.0.0.1:9", replay=f"tcp://127.0.0.1:{port}")


async def test_few_answer_with_all_they_kept_at_the_same_time() -> None:
    beginnings = asyncio.Semaphore(AT_ONCE)
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        context = zmq.asyncio.Context()
        stack.callback(context.destroy, linger=0)
        publishers, accounts, tasks = Publishers(context), list[PublisherAccount](), []
        group = await stack.enter_async_context(asyncio.TaskGroup())
        for slot in range(PUBLISHERS):
            socket, endpoint = publishers.bound()
            account = PublisherAccount(
                slot, 0, ranks=1, model="demo", block_tokens=BLOCK, limit_blocks=10, can_replay=True
            )
            subscription = Subscription(
                context, endpoint, account, lambda: None, beginnings,
                check_interval_s=LIMIT_S, answer_deadline_s=LIMIT_S,
            )  # fmt: skip
            accounts.append(account)
            tasks += [
                group.create_task(publishers.run(socket)), group.create_task(subscription.run())
            ]  # fmt: skip
        await until(lambda: all(one.standing is Standing.COMPLETE for one in accounts))
        for task in tasks:
            task.cancel()
    assert [len(one.ledger.contents().shelves[Medium.GPU]) for one in accounts] == [1] * PUBLISHERS
    assert publishers.most == AT_ONCE
