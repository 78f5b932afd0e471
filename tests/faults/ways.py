"""A bad way between two ends of a connection, for want of a bad network: what TCP makes of delay,
loss and reordering is bytes that come late, in pieces, and sometimes not for a while.

Invariants:
- Every byte arrives, in order: a FIN behind all that was sent, a RST behind what was read.
- What comes when, and in which pieces, is drawn from the seed of `draw`.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

from tests.raw import Wire

_READ_BYTES = 16384
_ON_THE_WAY = 64
_RESET = None


class Way:
    """`async with Way(port, draw) as way`: what is sent to way.port arrives at 127.0.0.1:`port`.

    Either direction takes `delay_s`, cuts everything into pieces of 1 to 40 bytes, and one piece in
    `stall_every` waits for `stall_s` more, as for a retransmission. pieces, stalls: so far."""

    def __init__(
        self,
        port: int,
        draw: random.Random,
        *,
        delay_s: float = 0.1,
        stall_s: float = 0.2,
        stall_every: int = 500,
    ) -> None:
        self._target = port
        self._draw = draw
        self._delay_s, self._stall_s, self._stall_every = delay_s, stall_s, stall_every
        self.pieces = 0
        self.stalls = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            self._start(self._join(Wire(sock)))

    def _start(self, running: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, near: Wire) -> None:
        sock = socket.socket()
        far = Wire(sock)
        try:
            await far.loop.sock_connect(sock, ("127.0.0.1", self._target))
            async with asyncio.TaskGroup() as group:
                for source, sink in ((near, far), (far, near)):
                    line: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_ON_THE_WAY)
                    group.create_task(self._read(source, line))
                    group.create_task(self._write(sink, line))
        except* OSError:  # one of the ends is gone: the other learns it
            for end in (near, far):
                with contextlib.suppress(OSError):
                    end.reset()
        finally:
            near.close()
            far.close()

    async def _read(self, source: Wire, line: "asyncio.Queue[tuple[float, bytes | None]]") -> None:
        while True:
            data: bytes | None
            try:
                data = await source.loop.sock_recv(source.sock, _READ_BYTES)
            except ConnectionError:
                data = _RESET
            await line.put((source.loop.time() + self._delay_s, data))
            if not data:
                return

    async def _write(self, sink: Wire, line: "asyncio.Queue[tuple[float, bytes | None]]") -> None:
        sink.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            due_s, data = await line.get()
            await asyncio.sleep(due_s - sink.loop.time())
            if data is _RESET:
                raise ConnectionResetError
            if not data:
                with contextlib.suppress(OSError):
                    sink.sock.shutdown(socket.SHUT_WR)
                return
            while data:
                size = self._draw.randint(1, 40)
                self.pieces += 1
                if not self._draw.randrange(self._stall_every):
                    self.stalls += 1
                    await asyncio.sleep(self._stall_s)
                await sink.loop.sock_sendall(sink.sock, data[:size])
                data = data[size:]
                await asyncio.sleep(0)  # the other end reads it by itself

    async def __aenter__(self) -> Self:
        self._listener.listen(1024)
        self._start(self._accept())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
