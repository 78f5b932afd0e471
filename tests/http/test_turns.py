"""What is too much for a turn goes on one behind another, with turns for all others between."""

import asyncio
from functools import partial

from tests.http.handlers import TEXT
from tests.raw import post, until
from tests.support import serving
from tokenlane.http.server import Exchange
from tokenlane.http.turns import TurnQueue

LONG = b"x" * 400_000


async def test_one_in_a_turn_in_the_order_they_came() -> None:
    turns = TurnQueue()
    turn = 0
    went_on: list[tuple[str, int]] = []

    def go_on(name: str) -> None:
        went_on.append((name, turn))

    for name in "abc":
        turns.add(partial(go_on, name))
    while len(went_on) < 3:
        await asyncio.sleep(0)
        turn += 1
    assert [name for name, _ in went_on] == ["a", "b", "c"]
    first = went_on[0][1]
    assert [at for _, at in went_on] == [first, first + 1, first + 2]
    # And the queue takes the next one.
    turns.add(partial(go_on, "d"))
    await until(lambda: len(went_on) == 4)


async def test_who_has_more_waits_behind_the_others() -> None:
    turns = TurnQueue()
    went_on: list[str] = []

    def again(name: str, left: int) -> None:
        went_on.append(name)
        if left:
            turns.add(partial(again, name, left - 1))

    turns.add(partial(again, "a", 2))
    turns.add(partial(again, "b", 1))
    await until(lambda: len(went_on) == 5)
    assert "".join(went_on) == "ababa"


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
