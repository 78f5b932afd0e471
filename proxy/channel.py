"""The channel between the supervisor and one worker: tagged messages over a socketpair.

How a worker is started, which `proxy.worker` and `proxy.supervisor` agree on:
- The supervisor runs `python -m proxy.worker CHANNEL_FD` in a session of its own, so that a
  Ctrl-C at the terminal reaches the supervisor alone, which then tells the workers.
- The first frame is Hello. It names the descriptors of the metrics segment and the load board,
  which the worker inherited with the channel, and the first FleetState.
- The worker loads its tokenizers, listens with SO_REUSEPORT on `settings.server`, and sends
  Ready; or it sends Failed with one sentence for the operator and exits with code 2.
- Afterwards: Fleet, Learned and Cached downwards (Learned is what another worker routed, Cached
  what a replica says of its cache), Reload downwards and a Reloaded for each upwards, Learned,
  Suspect, Routed, Stalled and Beats upwards, Explain downwards and an Explained for each upwards,
  Drain downwards once. A worker that got Drain stops listening, finishes what is in flight within
  `drain_deadline_s`, and exits 0.

Invariants:
- A message is whole or absent. Frames: uint32 little-endian length, then msgpack.
- Control messages are never dropped. Learned and Routed ones and what is told of stalls are
  (`offer`), when the other side does not keep up: they are hints, and a backlog of hints is memory.
- The end of the channel is not the end of a worker: it keeps serving what it knows.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

from proxy.model import CacheChange, FleetState, RoutingSample
from proxy.settings import Key, Settings
from proxy.telemetry.stall import Stall

# A hundred thousand keys are some 15 MB.
FRAME_LIMIT_BYTES = 64 * 1024 * 1024
BACKLOG_LIMIT_BYTES = 1024 * 1024
_LENGTH_BYTES = 4

log = logging.getLogger("channel")


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages."""


class Hello(Message, frozen=True):
    """Who the worker is and what it works with. port: the one to bind, never 0. keys: of clients;
    None where all may come in."""

    worker: int
    settings: Settings
    metrics_fd: int
    board_fd: int
    fleet: FleetState
    host: str
    port: int
    keys: tuple[Key, ...] | None


class Reload(Message, frozen=True):
    """Other settings and clients' keys (None: all may come in), whole. The worker says Reloaded."""

    number: int
    settings: Settings
    keys: tuple[Key, ...] | None


class Reloaded(Message, frozen=True):
    """A Reload is in force, or cannot be and nothing has changed; then `reason` says why."""

    number: int
    reason: str = ""


class Fleet(Message, frozen=True):
    """The replicas, whole. A later one replaces an earlier one."""

    state: FleetState


class Learned(Message, frozen=True):
    """A prefix that was routed to a replica. blocks: packed uint64, from the first block on."""

    slot: int
    blocks: bytes


class Cached(Message, frozen=True):
    """What a replica's KV events say. In order: none is left out without a later one that begins
    anew (`CacheChange.cleared`)."""

    change: CacheChange


class Suspect(Message, frozen=True):
    """A worker could not reach a replica: probe it now rather than at the next turn."""

    slot: int


class Routed(Message, frozen=True):
    """Some of the requests that were routed lately, for people to look at."""

    samples: list[RoutingSample]


class Drain(Message, frozen=True):
    """Finish what is in flight and exit."""


class Explain(Message, frozen=True):
    """Say where this request would go. number: comes back with the answer. headers: lower-case
    names."""

    number: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Explained(Message, frozen=True):
    """The answer to an Explain: an HTTP status and a JSON body."""

    number: int
    status: int
    body: bytes


class Ready(Message, frozen=True):
    """The worker listens."""


class Stalled(Message, frozen=True):
    """The worker's loop was held."""

    stall: Stall


class Beats(Message, frozen=True):
    """How late the last second's heartbeats were: packed float32 seconds."""

    lateness: bytes


class Failed(Message, frozen=True):
    """The worker cannot start; `reason` is one sentence for the operator."""

    reason: str


Down = Hello | Fleet | Reload | Learned | Cached | Explain | Drain
Up = Ready | Failed | Reloaded | Learned | Suspect | Routed | Stalled | Beats | Explained

_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)
_encode_into = msgspec.msgpack.Encoder().encode_into
_T = TypeVar("_T")


class _Wire(asyncio.Protocol):
    """One end: frames in, messages out to a callback."""

    def __init__(
        self,
        decode: Callable[[bytes | memoryview], _T],
        on_message: Callable[[_T], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decode = decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH_BYTES:
            size = int.from_bytes(buffer[at : at + _LENGTH_BYTES], "little")
            if size > FRAME_LIMIT_BYTES:
                log.error("frame of %d bytes refused; channel closed", size)
                self.close()
                return
            end = at + _LENGTH_BYTES + size
            if len(buffer) < end:
                break
            try:
                message = self._decode(bytes(buffer[at + _LENGTH_BYTES : end]))
            except msgspec.DecodeError as error:
                # The other side is of another version. Frames stay aligned: skip this one.
                log.warning("message not understood: %s", error)
            else:
                self._on_message(message)
            at = end
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost()

    def send(self, message: Message) -> None:
        if self.transport is None:
            return
        frame = bytearray(_LENGTH_BYTES)
        _encode_into(message, frame, _LENGTH_BYTES)
        frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
        self.transport.write(frame)

    def offer(self, message: Message) -> bool:
        if self.behind:
            return False
        self.send(message)
        return True

    @property
    def behind(self) -> bool:
        """Whether more is waiting to be written than should."""
        transport = self.transport
        return transport is None or transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


async def _open(wire: _Wire, end: socket.socket) -> None:
    end.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=end)


class WorkerEnd:
    """The worker's end of its channel. Callbacks run on the loop and must not block.

    on_lost: the supervisor is gone. Called once, and not if this side closed the channel.
    on_explain: gets (number, headers, body); `explained` answers. on_reload: `reloaded` does.
    """

    def __init__(
        self,
        *,
        on_fleet: Callable[[FleetState], None],
        on_learned: Callable[[int, bytes], None],
        on_drain: Callable[[], None],
        on_lost: Callable[[], None],
        on_cached: Callable[[CacheChange], None] = lambda _: None,
        on_explain: Callable[[int, tuple[tuple[bytes, bytes], ...], bytes], None] | None = None,
        on_reload: Callable[[Reload], None] = lambda _: None,
    ) -> None:
        self._on_reload = on_reload
        self._on_cached = on_cached
        self._on_explain = on_explain
        self._on_fleet = on_fleet
        self._on_learned = on_learned
        self._on_drain = on_drain
        self._on_lost = on_lost
        self._closing = False
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._wire = _Wire(_down.decode, self._received, self._lost)

    async def connect(self, descriptor: int) -> Hello:
        """Takes over the inherited channel and waits for Hello. ConnectionError if it ends."""
        os.set_inheritable(descriptor, False)
        await _open(self._wire, socket.socket(fileno=descriptor))
        return await self._hello

    def ready(self) -> None:
        """The worker listens."""
        self._wire.send(Ready())

    def failed(self, reason: str) -> None:
        """The worker cannot start; `reason` is one sentence for the operator."""
        self._wire.send(Failed(reason))

    def reloaded(self, number: int, reason: str = "") -> None:
        """The answer to a Reload."""
        self._wire.send(Reloaded(number, reason))

    def learned(self, slot: int, blocks: bytes) -> bool:
        """Tells the other workers of a routed prefix; False if it was dropped."""
        return self._wire.offer(Learned(slot, blocks))

    def suspect(self, slot: int) -> bool:
        """Asks for a probe of a replica that did not answer; False if it was dropped."""
        return self._wire.offer(Suspect(slot))

    def routed(self, samples: list[RoutingSample]) -> bool:
        """Shows some of the requests routed lately; False if they were dropped."""
        return self._wire.offer(Routed(samples))

    def stalled(self, stall: Stall) -> bool:
        """Tells of a stall; False if it was dropped."""
        return self._wire.offer(Stalled(stall))

    def beats(self, lateness: bytes) -> bool:
        """Tells how late the heartbeats were (packed float32 seconds); False if it was dropped."""
        return self._wire.offer(Beats(lateness))

    def explained(self, number: int, status: int, body: bytes) -> None:
        """The answer to an Explain."""
        self._wire.send(Explained(number, status, body))

    def close(self) -> None:
        """Closes the channel once what was sent has left."""
        self._closing = True
        self._wire.close()

    def _received(self, message: Down) -> None:
        match message:
            case Hello():
                if not self._hello.done():
                    self._hello.set_result(message)
            case Fleet(state):
                self._on_fleet(state)
            case Reload():
                self._on_reload(message)
            case Learned(slot, blocks):
                self._on_learned(slot, blocks)
            case Cached(change):
                self._on_cached(change)
            case Explain(number, headers, body):
                if self._on_explain is not None:
                    self._on_explain(number, headers, body)
            case Drain():
                self._on_drain()

    def _lost(self) -> None:
        if not self._hello.done():
            self._hello.set_exception(ConnectionError("the channel ended before Hello"))
        if not self._closing:
            self._on_lost()


class SupervisorEnd:
    """The supervisor's end of one worker's channel."""

    def __init__(self, *, on_message: Callable[[Up], None], on_lost: Callable[[], None]) -> None:
        self._wire = _Wire(_up.decode, on_message, on_lost)

    async def connect(self, end: socket.socket) -> None:
        """Takes over this end of the socketpair."""
        await _open(self._wire, end)

    def send(self, message: Hello | Fleet | Reload | Explain | Drain) -> None:
        """Sends a control message; nothing happens if the worker is gone."""
        self._wire.send(message)

    def offer(self, message: Learned) -> bool:
        """Sends a hint unless the worker is behind; False if it was dropped."""
        return self._wire.offer(message)

    @property
    def behind(self) -> bool:
        """Whether the worker does not keep up, or is gone."""
        return self._wire.behind

    def cached(self, change: CacheChange) -> None:
        """Sends what a replica's cache holds."""
        self._wire.send(Cached(change))

    def close(self) -> None:
        """Closes the channel."""
        self._wire.close()
