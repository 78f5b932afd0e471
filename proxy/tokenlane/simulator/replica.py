"""One simulated vLLM server: its port, its lifecycle and its faults.

Invariants:
- A replica keeps its port for life: while it refuses connections the port stays reserved.
- A killed replica comes back empty: new engine, new cache, new start time.
"""

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

from tokenlane.config.settings import ServerSettings
from tokenlane.http.server import Handler, HttpServer
from tokenlane.protocols.dialects import dialect_of
from tokenlane.simulator.drive import Drive
from tokenlane.simulator.executions import ExecutionLog
from tokenlane.simulator.faults import Fault, Faults, Kind
from tokenlane.simulator.kv_publisher import KvPublisher
from tokenlane.simulator.profile import SimulatorSettings
from tokenlane.simulator.prompts import Prompts
from tokenlane.simulator.stored import StoredResponses

_BODY_LIMIT_BYTES = 256 * 1024 * 1024
_FOREVER_S = 10.0**9


class SimulatedReplica:
    """index: its place in the fleet. in_flight: generating requests, from body to last byte.
    publisher: of its KV events, where the settings want them. executions: told what the engine
    takes. stored: responses. adapters: LoRA adapters that are loaded, by name, with where each is
    from."""

    def __init__(
        self,
        settings: SimulatorSettings,
        prompts: Prompts,
        index: int,
        executions: ExecutionLog | None = None,
    ) -> None:
        self.settings = settings
        self.prompts = prompts
        self.index = index
        self.executions = executions
        self.faults = Faults()
        self.in_flight = 0
        self.port = 0
        self.host = ""
        self.publisher: KvPublisher | None = None
        self._begin()
        self._holder: socket.socket | None = None
        self._server: HttpServer | None = None
        self._handler: Handler | None = None
        self._servers: set[HttpServer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Kind, asyncio.TimerHandle] = {}
        self.listening = asyncio.Event()
        self.serving = asyncio.Event()
        self.serving.set()

    def __repr__(self) -> str:
        engine = self.drive.engine
        return (
            f"<Replica {self.url} running={engine.running} waiting={engine.waiting} "
            f"blocks={len(engine.cache)} in_flight={self.in_flight}>"
        )

    @property
    def url(self) -> str:
        """Base URL, no path."""
        return f"http://{self.host}:{self.port}"

    @property
    def models(self) -> list[str]:
        """Names it answers to, the model's own first."""
        return [self.settings.model, *self.adapters]

    def _begin(self) -> None:
        """Begin as a process does: nothing cached or stored, and the adapters of the settings."""
        settings, publisher = self.settings, self.publisher
        self.adapters = {name: name for name in settings.adapter_names}
        self.stored = StoredResponses(on=settings.store_responses)
        self.drive = Drive(settings, None if publisher is None else publisher.publish)

    # Life

    async def start(self, handler: Handler, host: str, port: int) -> None:
        """Take the port (0: any) and listen."""
        self._handler = handler
        self._holder = _bound(host, port)
        self.host, self.port = host, self._holder.getsockname()[1]
        if self.settings.kv_events != "off":
            self.publisher = KvPublisher(self.settings.kv_events, host)
            self.publisher.start()
            self._begin()
        await self._listen()

    async def stop(self) -> None:
        """Close everything."""
        holder, self._holder = self._holder, None
        self.clear_fault()
        for task in list(self._tasks):
            task.cancel()
        for server in list(self._servers):
            await server.drain(0.0)
        self.drive.stop()
        if self.publisher is not None:
            await self.publisher.stop()
        if holder is not None:
            holder.close()

    async def set_fault(self, fault: Fault) -> None:
        """Switch a failure on. When this returns, the port is as the fault wants it."""
        self.faults.set(fault)
        timer = self._timers.pop(fault.kind, None)
        if timer is not None:
            timer.cancel()
        if fault.for_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[fault.kind] = loop.call_later(fault.for_s, self.clear_fault, fault.kind)
        if fault.kind in ("refuse", "kill") and self._server is not None:
            server, self._server = self._server, None
            self.listening.clear()
            # As far as its first wait, a drain runs at once: the listener is closed.
            self._keep(self._drain(server, 0.0 if fault.kind == "kill" else _FOREVER_S))
            await asyncio.sleep(0)
        if fault.kind == "kill":
            self.drive.stop()
            if self.publisher is not None:
                await self.publisher.stop()
                self.publisher.start()
            self._begin()
        self._settle()

    def clear_fault(self, kind: Kind | None = None) -> None:
        """Switch one failure off, or all."""
        self.faults.clear(kind)
        for name in list(self._timers) if kind is None else [kind]:
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
        self._settle()
        if self._server is None and self._holder is not None and not self._refusing():
            self._keep(self._listen_again())

    async def never(self) -> None:
        """Wait until the caller is cancelled."""
        await asyncio.get_running_loop().create_future()

    def _settle(self) -> None:
        slow = self.faults.active("slow")
        self.drive.engine.slowness = slow.factor if slow is not None else 1.0
        if self.faults.active("drain") is None:
            self.serving.set()
        else:
            self.serving.clear()

    def _refusing(self) -> bool:
        return any(self.faults.active(kind) is not None for kind in ("refuse", "kill"))

    async def _listen(self) -> None:
        assert self._handler is not None
        limits = ServerSettings(
            idle_deadline_s=self.settings.keep_alive_s,
            body_limit_bytes=_BODY_LIMIT_BYTES,
            drain_linger_s=0.0,
            bodies_limit_bytes=0,
            accept_wait_limit_s=0.0,
        )
        server = self._server = HttpServer(
            self._handler, limits, add_request_id=False, error_format=dialect_of
        )
        self._servers.add(server)
        await server.listen(_bound(self.host, self.port))
        self.listening.set()

    async def _listen_again(self) -> None:
        if self._server is None and not self._refusing() and self._holder is not None:
            await self._listen()

    async def _drain(self, server: HttpServer, deadline_s: float) -> None:
        await server.drain(deadline_s)
        self._servers.discard(server)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bound(host: str, port: int) -> socket.socket:
    """Return a bound socket. Several may be bound to a port, as long as one listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.setblocking(False)
    return sock
