"""What one input costs the gateway: CPU, the longest turn of its loop, memory. Peers are threads of
their own, whose CPU is not counted.

Invariants:
- CPU is that of the whole process, its threads included, without the peers'.
- The three are measured in runs of their own: each meter would be seen by the others.
"""

import asyncio
import contextlib
import gc
import socket
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.machine import stolen_s
from tests.raw import post
from tests.turns import counted

SILENCE_S = 3.0
Answers = Callable[[bytes], bytes]


def _until_end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(65536):
            pass


def _asked(sock: socket.socket) -> bytes:
    """The path of a request that was read to its end; empty at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    left = int(length or 0) - len(body)
    while left > 0:
        more = sock.recv(65536)
        if not more:
            return b""
        left -= len(more)
    return head.split(b" ")[1]


class Peers:
    """A client and a replica, each a thread with blocking sockets. answers: what the replica says
    to a path; it closes the connection behind it."""

    def __init__(self) -> None:
        self.answers: Answers = lambda _: b""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._replica = threading.Thread(target=self._serve, daemon=True)
        self._replica.start()
        self._client = ThreadPoolExecutor(1)
        self._client.submit(int).result()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(SILENCE_S)
            with contextlib.suppress(OSError), sock:
                if path := _asked(sock):
                    sock.sendall(self.answers(path))

    def cpu_s(self) -> float:
        """What both have used."""
        threads = [self._replica, *self._client._threads]
        clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident]
        return sum(map(time.clock_gettime, clocks))

    async def send(self, port: int, data: bytes) -> None:
        """As a client, and read until the other side ends the connection."""

        def exchange() -> None:
            with socket.create_connection(("127.0.0.1", port), SILENCE_S) as sock:
                with contextlib.suppress(OSError):
                    sock.sendall(data)
                _until_end(sock)

        await asyncio.get_running_loop().run_in_executor(self._client, exchange)

    async def post(self, port: int, path: str, body: bytes) -> None:
        """A request on a connection of its own."""
        await self.send(port, post(path, body, "connection: close\r\n"))

    def close(self) -> None:
        """Both end."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._client.shutdown()


@dataclass(frozen=True)
class Cost:
    """Of one input. peak_bytes: allocated meanwhile; kept_bytes: when it was over."""

    sent_bytes: int
    cpu_s: float = 0.0
    turn_s: float = 0.0
    peak_bytes: int = 0
    kept_bytes: int = 0


Drive = Callable[[], Awaitable[int]]
"""Sends an input and returns when the gateway is done with it; how much was sent."""


@contextlib.asynccontextmanager
async def _still() -> AsyncIterator[None]:
    """The collector walks all that tests have."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def cpu(drive: Drive, peers: Peers) -> Cost:
    """What it takes of all threads."""
    async with _still():
        before_s = time.process_time() - peers.cpu_s()
        sent_bytes = await drive()
        return Cost(sent_bytes, cpu_s=time.process_time() - peers.cpu_s() - before_s)


async def turn(drive: Drive, _: Peers) -> Cost:
    """The longest turn of the loop, without what the hypervisor took meanwhile."""
    stolen_before_s = stolen_s()
    async with counted() as turns:
        await asyncio.sleep(0)  # the clock of turns has begun
        sent_bytes = await drive()
    return Cost(sent_bytes, turn_s=max(0.0, turns.longest_s - stolen_s() + stolen_before_s))


async def memory(drive: Drive, _: Peers) -> Cost:
    """What was allocated by Python code."""
    gc.collect()
    tracemalloc.start()
    try:
        sent_bytes = await drive()
        peak_bytes = tracemalloc.get_traced_memory()[1]
        gc.collect()
        return Cost(
            sent_bytes, peak_bytes=peak_bytes, kept_bytes=tracemalloc.get_traced_memory()[0]
        )
    finally:
        tracemalloc.stop()
