"""What is too much for a turn goes on one behind another, with turns for all others between."""

import asyncio
from functools import partial
from typing import cast

from tests.http.handlers import TEXT
from tests.raw import post, until
from tests.scripted import ScriptedTransport
from tests.support import serving
from tokenlane.config.settings import ServerSettings
from tokenlane.http.connection import ServerConnection
from tokenlane.http.server import Exchange, HttpServer
from tokenlane.http.turns import TurnQueue

LONG = b"x" * 400_000


async def turns_of(turns: TurnQueue, shares: dict[str, float]) -> list[tuple[str, int]]:
    """Who goes on, and in which turn, counted from that of the first."""
    turn = 0
    went_on: list[tuple[str, int]] = []

    def go_on(name: str) -> None:
        went_on.append((name, turn))

    for name, share in shares.items():
        turns.add(partial(go_on, name), share)
    # Nobody goes before those that wait.
    assert not turns.take(0.125)
    while len(went_on) < len(shares):
        await asyncio.sleep(0)
        turn += 1
    return [(name, at - went_on[0][1]) for name, at in went_on]


async def test_one_in_a_turn_in_the_order_they_came() -> None:
    turns = TurnQueue()
    shares = dict.fromkeys("abc", 1.0)
    assert await turns_of(turns, shares) == [("a", 0), ("b", 1), ("c", 2)]
    # And the queue takes the next one.
    assert await turns_of(turns, {"d": 1.0}) == [("d", 0)]


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


async def test_as_much_in_a_turn_as_fits() -> None:
    shares = {"a": 0.5, "b": 0.25, "c": 0.5, "d": 1.0, "e": 0.125}
    assert await turns_of(TurnQueue(), shares) == [
        ("a", 0), ("b", 0), ("c", 1), ("d", 2), ("e", 3),
    ]  # fmt: skip


async def test_who_comes_in_a_turn_that_has_room_goes_on_at_once() -> None:
    turns = TurnQueue()
    assert [turns.take(share) for share in (0.5, 0.25, 0.5, 0.25)] == [True, True, False, True]
    await asyncio.sleep(0)
    assert [turns.take(share) for share in (1.0, 0.125)] == [True, False]


async def test_bodies_that_are_whole_before_they_are_read_take_turns() -> None:
    """All that came in one poll is complete before any handler begins."""
    sizes = [len(LONG)] * 3 + [200_000] * 2 + [10]
    turn = 0
    handed: list[tuple[int, int]] = []

    async def handler(exchange: Exchange) -> None:
        body = await exchange.read_body()
        handed.append((len(body), turn))
        exchange.respond(200, TEXT, b"")

    server = HttpServer(handler, ServerSettings())
    scene = [(ServerConnection(server), ScriptedTransport()) for _ in sizes]
    for size, (connection, transport) in zip(sizes, scene, strict=True):
        connection.connection_made(cast(asyncio.Transport, transport))
        request = post("/", LONG[:size])
        # A read has at most so much: the lesser bodies come whole, with their heads.
        for at in range(0, len(request), 256_000):
            connection.data_received(request[at : at + 256_000])
    while len(handed) < len(sizes):
        await asyncio.sleep(0)
        turn += 1
    long = [at for size, at in handed if size == len(LONG)]
    assert len(set(long)) == len(long)
    lesser = [at for size, at in handed if size == 200_000]
    assert lesser[0] == lesser[1]
    assert [at for size, at in handed if size == 10] == [long[0]]
    for connection, transport in scene:
        connection.connection_lost(None)
        transport.sock.close()


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
