"""The gateway whole, between a client and a replica made of bytes: what both of them said, and
what is left of it once they are gone.

Everything is a real socket, on a loop that says when nothing is left to be done: no property waits
for a time to pass, and none is judged too early.

Invariants:
- A scene lives on from one input to the next, as a gateway does.
- What is logged as an error, or told to the loop's exception handler, fails the input.
"""

import asyncio
import contextlib
import itertools
import logging
import selectors
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import h11

from tests.support import Bench

Asked = tuple[h11.Request, bytes]
# What a replica does about a request: sends pieces, and ends its connection in some way (or not).
Script = Callable[[Asked], "Said"]
_BREATH_S = 0.0005
_LIMIT_S = 60.0  # a search runs at low priority
_RESET = struct.pack("ii", 1, 0)


def _reset(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


@dataclass
class Said:
    """What a replica sends, and how it ends: "" where it waits for the next request, "FIN", "RST",
    or "silence": nothing more comes of this answer."""

    pieces: list[bytes]
    ends: str = ""


class _Selector(selectors.DefaultSelector):
    """Calls `idle` before it would wait."""

    idle: Callable[[], bool] = staticmethod(lambda: False)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0) or self.idle():
            return events
        return super().select(timeout)


class _Whole:
    """One of the gateway's protocols with what it lacks, because uvloop asks for no more."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol, name)

    def eof_received(self) -> None:
        """No half of a connection is kept open."""


def _whole(factory: Callable[[], Any]) -> Any:
    return lambda: _Whole(factory())


class QuietLoop(asyncio.SelectorEventLoop):
    """A loop that knows when it has nothing to do but wait: for time, or another thread."""

    def __init__(self) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.idle = self._idle
        self._waiting: list[asyncio.Future[None]] = []

    # Called in fewer ways than asyncio knows.
    async def create_server(self, factory: Any, *given: Any, **named: Any) -> asyncio.Server:  # type: ignore[override]
        """As asyncio's, for the gateway's protocols, too."""
        return await super().create_server(_whole(factory), *given, **named)

    async def create_connection(self, factory: Any, *given: Any, **named: Any) -> Any:  # type: ignore[override]
        """As asyncio's, for the gateway's protocols, too."""
        return await super().create_connection(_whole(factory), *given, **named)

    async def quiet(self) -> None:
        """Returns when all others wait."""
        self._waiting.append(self.create_future())
        await self._waiting[-1]

    def _idle(self) -> bool:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
        return bool(waiting)


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.errors.append(logging.Formatter().format(record))


class _Replica(asyncio.Protocol):
    """One connection. Every request on it is read by h11, and is one."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self._parser = h11.Connection(h11.SERVER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._request: h11.Request | None = None
        self._body = b""

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.receive_data(data)
            while (event := self._parser.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    self._request = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._asked()
                    return
        except h11.RemoteProtocolError as error:
            self._scene.wrong.append(f"a replica cannot read {data[:200]!r}: {error}")

    def _asked(self) -> None:
        if self._parser.trailing_data[0]:
            self._scene.wrong.append(f"bytes behind a request: {self._parser.trailing_data[0]!r}")
        assert self._request is not None
        asked, self._body = (self._request, self._body), b""
        self._parser = h11.Connection(h11.SERVER)
        self._scene.hears(asked, self._transport)


@dataclass
class Heard:
    """All that a client heard. over: there was an end; broken: by something else than a FIN."""

    data: bytes = b""
    over: bool = False
    broken: bool = False


class _Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard = Heard()

    def data_received(self, data: bytes) -> None:
        self.heard.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.over, self.heard.broken = True, exc is not None


@dataclass
class Scene:
    """script: of the replica. wrong: what must not happen. asked: what replicas were asked since
    the client came."""

    loop: QuietLoop
    bench: Bench = field(init=False)
    script: Script = field(init=False)
    wrong: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    unsent: list[tuple[asyncio.Transport, list[bytes], str]] = field(default_factory=list)
    _silent: set[asyncio.Transport] = field(default_factory=set)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def replica(self) -> AsyncIterator[str]:
        """Its URL."""
        server = await self.loop.create_server(lambda: _Replica(self), "127.0.0.1", 0)
        self.loop.set_exception_handler(
            lambda _loop, context: self.wrong.append(f"the loop was told: {context}")
        )
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def hears(self, asked: Asked, transport: asyncio.Transport) -> None:
        """A replica got a request on this connection."""
        self.asked.append(asked)
        self._silent.discard(transport)
        said = self.script(asked)
        self.unsent.append((transport, list(said.pieces), said.ends))

    def play(self, pieces: list[bytes], *, resets: bool = False) -> Heard:
        """A client sends these, waits until nothing more comes, and leaves: what it heard. Fails
        if something went wrong, or was left behind."""
        log = _Log()
        logging.getLogger().addHandler(log)
        try:
            heard = self.loop.run_until_complete(self._play(pieces, resets=resets))
        finally:
            logging.getLogger().removeHandler(log)
            wrong = [*self.wrong, *log.errors]
            self.wrong.clear()
        assert not wrong, "\n".join(wrong)
        return heard

    async def _play(self, pieces: list[bytes], *, resets: bool) -> Heard:
        self._tasks = asyncio.all_tasks()
        self.asked.clear()
        self._silent.clear()
        client, port = _Client(), self.bench.port
        transport, _ = await self.loop.create_connection(lambda: client, "127.0.0.1", port)
        try:
            for piece in pieces:
                transport.write(piece)
                await self._settled(client.heard)
        finally:
            heard = replace(client.heard)
            _reset(transport) if resets and not heard.over else transport.close()
        self.unsent.clear()
        await self._until(lambda: not self._left(), lambda: f"left behind: {self._left()}")
        return heard

    async def _settled(self, heard: Heard) -> None:
        """Returns when it is the client's turn."""
        await self._until(
            lambda: not self.unsent and (heard.over or not self._busy()),
            lambda: f"no end of {self.bench.gateway.in_hand}",
        )

    async def _until(self, holds: Callable[[], bool], why: Callable[[], str]) -> None:
        began_s = time.monotonic()
        for count in itertools.count():
            await self.loop.quiet()
            if self.unsent:
                self._send()
            elif holds():
                return
            elif count:
                assert time.monotonic() < began_s + _LIMIT_S, why()
                await asyncio.sleep(_BREATH_S)  # a thread works

    def _send(self) -> None:
        transport, pieces, ends = self.unsent[0]
        if pieces and not transport.is_closing():
            transport.write(pieces.pop(0))
            return
        self.unsent.pop(0)
        if ends == "FIN":
            transport.close()
        elif ends == "RST" and not transport.is_closing():
            _reset(transport)
        elif ends == "silence":
            self._silent.add(transport)

    def _busy(self) -> bool:
        waits = any(one.body.reader is not None for one in self.bench.server.connections)
        return bool(self.bench.gateway.in_hand) and not waits and not self._silent

    def _left(self) -> list[str]:
        """What is counted for somebody who is gone."""
        bench = self.bench
        pools = [bench.gateway.fleet[one.slot].pool for one in bench.gateway.fleet.state.replicas]
        counts = {
            "connections": len(bench.server.connections),
            "requests": len(bench.gateway.in_hand),
            "load": not bench.idle,
            "bodies": bench.server.state.body_memory.held_bytes,
            "connections to replicas": sum(one.open_count - one.idle_count for one in pools),
            "tasks": len(asyncio.all_tasks() - self._tasks - {asyncio.current_task()}),
        }
        return [f"{count} {name}" for name, count in counts.items() if count]
