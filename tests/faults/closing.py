"""A replica in a process of its own that closes idle connections at its timeout, give or take a
millisecond, whatever is on its way to it.

    python closing.py LISTENER_FD TIMEOUT_S

Ends with its stdin, and then says on stdout, as JSON, how often each request (`x-number`) ran, as
counts of counts, and how many connections it closed.
"""

import asyncio
import json
import random
import re
import socket
import sys
from collections import Counter

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_NUMBER = re.compile(rb"\r\nx-number: (\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
executed: Counter[int] = Counter()
closed: Counter[str] = Counter()
draw = random.Random(5)


class Replica(asyncio.Protocol):
    """One connection."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.arm()

    def arm(self) -> None:
        """Closes later."""
        delay_s = self.timeout_s + draw.uniform(-0.001, 0.001)
        self.timer = asyncio.get_running_loop().call_later(delay_s, self.close)

    def close(self) -> None:
        """The timeout."""
        closed["timeout"] += 1
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        number, length = _NUMBER.search(head), _LENGTH.search(head)
        if not end or number is None or length is None or len(body) < int(length[1]):
            return
        self.timer.cancel()
        self.data = body[int(length[1]) :]
        executed[int(number[1])] += 1
        self.transport.write(ANSWER)
        self.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()


async def main() -> None:
    """Serves until stdin ends."""
    loop = asyncio.get_running_loop()
    listener = socket.socket(fileno=int(sys.argv[1]))
    timeout_s = float(sys.argv[2])
    await loop.create_server(lambda: Replica(timeout_s), sock=listener, backlog=256)
    await loop.run_in_executor(None, sys.stdin.read)
    times = Counter(executed.values())
    print(json.dumps({"times": times, "closed": closed["timeout"]}))  # noqa: T201 - its report


if __name__ == "__main__":
    asyncio.run(main())
