"""Long bodies go on one behind another, with turns of the loop for everybody else between them."""

import asyncio

from tests.http.handlers import TEXT
from tests.raw import post, until
from tests.support import serving
from tokenlane.http.body_queue import BodyQueue
from tokenlane.http.server import Exchange

LONG = b"x" * 400_000


async def test_one_in_a_turn_in_the_order_they_came() -> None:
    loop = asyncio.get_running_loop()
    queue = BodyQueue()
    turn = 0
    went_on: list[tuple[str, int]] = []

    async def body(name: str) -> None:
        waiter = loop.create_future()
        queue.add(waiter)
        await waiter
        went_on.append((name, turn))

    tasks = [loop.create_task(body(name)) for name in "abc"]
    while len(went_on) < 3:
        await asyncio.sleep(0)
        turn += 1
    await asyncio.gather(*tasks)
    assert [name for name, _ in went_on] == ["a", "b", "c"]
    first = went_on[0][1]
    assert [at for _, at in went_on] == [first, first + 1, first + 2]
    # And the queue takes the next one.
    await asyncio.wait_for(body("d"), 10)


async def test_who_left_takes_no_turn() -> None:
    loop = asyncio.get_running_loop()
    queue = BodyQueue()
    gone, last, stays = [loop.create_future() for _ in range(3)]
    for waiter in (gone, stays, last):
        queue.add(waiter)
    gone.cancel()
    last.cancel()
    await asyncio.wait_for(stays, 10)
    again = loop.create_future()
    queue.add(again)
    await asyncio.wait_for(again, 10)


async def test_a_short_body_waits_for_one_long_one_at_most() -> None:
    """Four long bodies and behind them a short one are complete in the same turn."""
    sizes = [len(LONG)] * 4 + [10]
    handed: list[int] = []

    async def handler(exchange: Exchange) -> None:
        body = await exchange.read_body()
        handed.append(len(body))
        exchange.respond(200, TEXT, b"%d" % len(body))

    async with serving(handler) as served:

        def lack_a_byte() -> bool:
            readers = [connection.body.reader for connection in served.server.connections]
            return [getattr(reader, "left_bytes", 0) for reader in readers] == [1] * len(sizes)

        clients = [await served.client() for _ in sizes]
        for client, size in zip(clients, sizes, strict=True):
            await client.send(post("/", LONG[:size])[:-1])
        await until(lack_a_byte)
        for client in clients:
            client.sock.send(b"x")
        answers = [await client.answer() for client in clients]
    assert [int(answer.body) for answer in answers] == sizes
    assert sorted(handed) == sorted(sizes)
    assert handed.index(10) <= 1
