"""What waits in the kernel for a listener, and what it dropped."""

import asyncio
import contextlib
import socket

import pytest

from tests.raw import until
from tokenlane.runtime.accept_queue import AcceptQueue, close_to_new, look
from tokenlane.runtime.ports import reuse_port_socket


async def test_what_nobody_accepts_waits_and_then_is_dropped() -> None:
    with contextlib.ExitStack() as held, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(3)
        assert look(listener) == AcceptQueue(0, 3, 0)

        def knock() -> None:
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())

        for _ in range(2):
            knock()
        await until(lambda: look(listener) == AcceptQueue(2, 3, 0))
        for _ in range(6):
            knock()
        # One more than its limit is Linux's way to count.
        await until(lambda: look(listener).waiting == 4 and look(listener).dropped >= 4)
        listener.accept()[0].close()
        assert look(listener).waiting <= 4


def test_a_socket_that_is_closed_has_none() -> None:
    with socket.socket() as listener:
        pass
    assert look(listener) == AcceptQueue()


@pytest.mark.row("O7")
async def test_closed_to_new_clients_it_still_has_the_others() -> None:
    """And who comes meanwhile is the next listener's client: closed at once, the listener would
    take those with it that come between its last look at the queue and its end."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as held:
        first = held.enter_context(reuse_port_socket("127.0.0.1", 0))
        address = first.getsockname()
        first.listen()
        before, after = [held.enter_context(socket.socket()) for _ in range(2)]
        for client in (before, after):
            client.setblocking(False)
        await loop.sock_connect(before, address)
        await loop.sock_sendall(before, b"served")
        close_to_new(first)
        connecting = loop.create_task(loop.sock_connect(after, address))
        taken = held.enter_context(first.accept()[0])
        taken.setblocking(False)
        assert await loop.sock_recv(taken, 10) == b"served"
        assert look(first).waiting == 0
        second = held.enter_context(reuse_port_socket("127.0.0.1", address[1]))
        second.listen()
        first.close()
        await connecting
        held.enter_context((await loop.sock_accept(second))[0])
