"""The two ends of a worker's channel. Callbacks run on the loop and must not block."""

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from tokenlane.channel.frames import Frames
from tokenlane.channel.messages import Down, Hello, Up

_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)


class SupervisorEnd(Frames[Up, Down]):
    """The supervisor's end of one worker's channel."""

    def __init__(
        self, on_message: Callable[[Up], None], on_lost: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(_up.decode, on_message, on_lost)


class WorkerEnd(Frames[Down, Up]):
    """The worker's end of its channel. on_message: told of all but Hello. on_lost: the supervisor
    is gone."""

    def __init__(self, on_message: Callable[[Down], None], on_lost: Callable[[], None]) -> None:
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

        def received(message: Down) -> None:
            if not isinstance(message, Hello):
                on_message(message)
            elif not self._hello.done():
                self._hello.set_result(message)

        def lost() -> None:
            if not self._hello.done():
                self._hello.set_exception(ConnectionError("the channel ended before Hello"))
            on_lost()

        super().__init__(_down.decode, received, lost)

    async def connect(self, descriptor: int) -> Hello:
        """Take over the inherited channel and wait for Hello. ConnectionError if it ends."""
        os.set_inheritable(descriptor, False)
        await self.attach(socket.socket(fileno=descriptor))
        return await self._hello
