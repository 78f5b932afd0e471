"""A server or a gateway in this process on a real port, with everything in it in reach.

Invariants:
- A gateway leaves its context idle, or the test fails: no load on the board, no connection, no
  task.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from tests.held import GATE
from tests.raw import LIMIT_S, Answer, Client, until
from tokenlane.admission.auth import Authenticator, dropped_fields
from tokenlane.config.keyring import client_keys
from tokenlane.config.secret import Secret
from tokenlane.config.settings import ServerSettings, Settings, TokenSettings
from tokenlane.config.tls import server_context
from tokenlane.fleet_state import ALL_KINDS, FleetState, Load, Proof, ReplicaState
from tokenlane.gateway.recorder import Recorder
from tokenlane.gateway.request import Gateway
from tokenlane.http.server import Exchange, Handler, HttpServer
from tokenlane.protocols.dialects import dialect_of
from tokenlane.protocols.routes import HEALTH_PATHS
from tokenlane.routing.lease import LocalBoard
from tokenlane.telemetry.load_board import SharedBoard
from tokenlane.telemetry.log.access_log import AccessLog
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.family import Family
from tokenlane.telemetry.metrics.segment import MetricsSegment, SegmentReader, create_segment
from tokenlane.telemetry.tracing.exporter import Tracer
from tokenlane.tokens.demo import demo_folder
from tokenlane.tokens.service import TokenService
from tokenlane.tokens.tokenizer import Tokenizer


@cache
def demo_tokenizer() -> Tokenizer:
    """The demo model's, loaded once."""
    return Tokenizer.load("demo", demo_folder())


@cache
def slow_tokenizer() -> Tokenizer:
    """The demo model's with the reference engines, for tests in which long prompts take long."""
    return Tokenizer.load("demo", demo_folder(), fast=False)


def listener(*, send_bytes: int = 0) -> socket.socket:
    """A bound socket on a free port. send_bytes: a small buffer for slow readers to fill."""
    sock = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY where it says so
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    sock.bind(("127.0.0.1", 0))
    return sock


@dataclass
class Served:
    """A server on a port, and the clients that the context closes."""

    server: HttpServer
    port: int
    clients: list[Client] = field(default_factory=list, kw_only=True)

    async def client(self, *, receive_bytes: int = 0) -> Client:
        client = await Client.connect(self.port, receive_bytes=receive_bytes)
        self.clients.append(client)
        return client

    async def ask(self, request: bytes, method: str = "POST") -> Answer:
        """One request on a connection of its own."""
        client = await self.client()
        try:
            return await client.ask(request, method)
        finally:
            client.close()


@asynccontextmanager
async def serving(
    handler: Handler,
    settings: ServerSettings | None = None,
    *,
    send_bytes: int = 0,
    on_refused: Callable[[Exchange], None] | None = None,
) -> AsyncIterator[Served]:
    """A server with this handler alone."""
    server = HttpServer(handler, settings or ServerSettings(), on_refused=on_refused)
    sock = listener(send_bytes=send_bytes)
    served = Served(server, sock.getsockname()[1])
    await server.listen(sock)
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        await server.drain(LIMIT_S)
    assert not server.connections


@dataclass
class Bench(Served):
    """A gateway on a port, with everything in it in reach."""

    gateway: Gateway
    board: LocalBoard | SharedBoard
    tokens: TokenService
    recorder: Recorder
    _metrics: SegmentReader

    def metric(self, family: Family, *labels: str) -> float:
        """A counter or gauge now (of a histogram: its number of observations), summed over the
        labels that are not given."""
        return sum(
            sum(values[1:]) if family.kind == "histogram" else values[0]
            for sampled, given, values in self._metrics.samples()
            if sampled is family and given[: len(labels)] == labels
        )

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Requests by (status, outcome)."""
        counts: dict[tuple[str, str], int] = {}
        for family, labels, values in self._metrics.samples():
            if family is families.REQUESTS and values[0]:
                key = labels[1], labels[2]
                counts[key] = counts.get(key, 0) + int(values[0])
        return counts

    @property
    def idle(self) -> bool:
        """No work is counted anywhere."""
        slots = [replica.slot for replica in self.gateway.fleet.state.replicas]
        return all(self.board.load(slot) == Load(0, 0) for slot in slots)


PROVEN = Proof(proven=ALL_KINDS)


def replicas(urls: Sequence[str], **fields: Any) -> FleetState:
    """A snapshot in which these are up, and have proven their ids."""
    common: dict[str, Any] = {"up": True, "models": ("demo",), "block_tokens": 16, **fields}
    common.setdefault("proofs", dict.fromkeys(common["models"], PROVEN))
    return FleetState(
        1,
        tuple(
            ReplicaState(id=url.partition("://")[2], slot=slot, url=url, **common)
            for slot, url in enumerate(urls)
        ),
    )


@asynccontextmanager
async def gateway(
    *urls: str,
    settings: Settings | None = None,
    tokenizer: Tokenizer | Mapping[str, Tokenizer] | None = None,
    send_bytes: int = 0,
    state: FleetState | None = None,
    tracer: Tracer | None = None,
    access: AccessLog | None = None,
    replica_key: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    asks: bool = False,
    board: LocalBoard | SharedBoard | None = None,
    model: str = "demo",
    share: tuple[int, int] = (0, 1),
) -> AsyncIterator[Bench]:
    """A gateway in front of these replicas; without a tokenizer unless one (of `demo`, or some by
    the names of their models) is given. asks: them for ids, as the settings say; scripts of
    replicas expect no such question. share: the worker's number, and how many there are."""
    settings = settings or Settings()
    tokens_of = settings.tokens
    if not asks:
        tokens_of = msgspec.structs.replace(tokens_of, ask_replicas=False)
    if tokens_of.as_text_ratio == TokenSettings().as_text_ratio:  # chance is no help to other tests
        tokens_of = msgspec.structs.replace(tokens_of, as_text_ratio=0.0)
    settings = msgspec.structs.replace(settings, tokens=tokens_of)
    tasks_before = asyncio.all_tasks()
    descriptor = create_segment()
    if isinstance(tokenizer, Tokenizer):
        tokenizer = {model: tokenizer}
    board = board or LocalBoard()
    recorder = Recorder(MetricsSegment(descriptor), settings.prices, access=access, tracer=tracer)
    keys = client_keys(settings.auth)
    made = Gateway(
        settings,
        tokenizer or {},
        board,
        recorder,
        share=share,
        authenticator=Authenticator(keys, recorder.unauthorized) if keys is not None else None,
        replica_key=replica_key,
        tls=tls,
    )
    reader = SegmentReader(descriptor)
    os.close(descriptor)
    made.update(replicas(urls) if state is None else state)
    server = HttpServer(
        made.handle,
        settings.server,
        guarded=True,
        on_shed=recorder.refused_clients,
        spared=HEALTH_PATHS,
        dropped=dropped_fields(keys, replica_key),
        error_format=dialect_of,
        known_part=made.tokens.bodies.part,
    )
    sock = listener(send_bytes=send_bytes)
    bench = Bench(server, sock.getsockname()[1], made, board, made.tokens, recorder, reader)
    await server.listen(sock, server_context(settings.server))
    try:
        with GATE.watched():
            yield bench
        for client in bench.clients:
            client.close()
        await until(lambda: not server.connections)
        await until(lambda: bench.idle)
    finally:
        for client in bench.clients:
            client.close()
        await server.drain(0.0)
        await until(lambda: not server.connections)
        made.close()
        reader.close()

    def left() -> list[str]:
        """Coroutines that still run, replicas' scripts and the ways to them aside."""
        coroutines = [repr(task.get_coro()) for task in asyncio.all_tasks() - tasks_before]
        return [one for one in coroutines if "Upstream." not in one and "Way." not in one]

    await until(lambda: not left())
