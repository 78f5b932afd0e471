"""What waits in the kernel for a listener, and what it dropped."""

import contextlib
import socket

from tests.raw import until
from tokenlane.runtime.accept_queue import AcceptQueue, look


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
