"""The floor: bytes from a client's connection to a replica's and back, on uvloop. It reads nothing.

Each client connection gets a replica's for itself, one replica after the other.
"""

import argparse
import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import cast
from urllib.parse import urlsplit

import uvloop


class _End(asyncio.Protocol):
    """One end of a pipe: what comes in here goes out at the other."""

    def __init__(self, other: "_End | None" = None) -> None:
        self._other = other
        self._early: list[bytes] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are not of asyncio's class.
        self.transport = cast("asyncio.Transport", transport)

    def join(self, other: "_End") -> None:
        """The other end is there: send it what came before it was."""
        self._other = other
        for data in self._early:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._other is None or self._other.transport is None:
            self._early.append(data)
        else:
            self._other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()


class _ClientEnd(_End):
    def __init__(self, upstreams: Iterator[tuple[str, int]]) -> None:
        super().__init__()
        self._upstream = next(upstreams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        host, port = self._upstream
        _, end = await asyncio.get_running_loop().create_connection(lambda: _End(self), host, port)
        self.join(end)


async def serve(port: int, upstreams: Sequence[tuple[str, int]]) -> None:
    """Serve on the loopback port until cancelled."""
    turn = itertools.cycle(upstreams)
    server = await asyncio.get_running_loop().create_server(
        lambda: _ClientEnd(turn), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


def main() -> None:
    """Command line: --port and one --backend per upstream."""
    parser = argparse.ArgumentParser(prog="python -m bench.tools.pipe", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", action="append", required=True, metavar="URL")
    options = parser.parse_args()
    urls = [urlsplit(url) for url in options.backend]
    uvloop.run(serve(options.port, [(url.hostname or "", url.port or 80) for url in urls]))


if __name__ == "__main__":
    main()
