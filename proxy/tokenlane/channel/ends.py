"""The two ends of a channel: what each may say, and what it hears.

Invariants:
- Control messages are sent; hints are offered, and dropped where the other side does not keep up.
- The end of the channel is told once, and not to who closed it.
"""

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from tokenlane.channel.frames import Frames
from tokenlane.channel.messages import (
    Beats,
    Cached,
    Down,
    Drain,
    Explain,
    Explained,
    Failed,
    FleetUpdate,
    Hello,
    Kept,
    Learned,
    Places,
    Portions,
    ProofFound,
    Reload,
    Reloaded,
    ResponseOf,
    RoutedSamples,
    Stalled,
    Suspect,
    Up,
    WhoseResponse,
    WorkerReady,
)
from tokenlane.fleet_state import CacheChange, FleetState, ProofNews
from tokenlane.telemetry.routing_sample import RoutingSample
from tokenlane.telemetry.stalls.stall import Stall

_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)


class WorkerEnd:
    """The worker's end of its channel. Callbacks run on the loop and must not block.

    on_lost: the supervisor is gone. Called once, and not if this side closed the channel.
    on_explain: `explained` answers. on_reload: `reloaded` does.
    """

    def __init__(
        self,
        *,
        on_fleet: Callable[[FleetState], None],
        on_learned: Callable[[int, bytes, str], None],
        on_drain: Callable[[], None],
        on_lost: Callable[[], None],
        on_response_of: Callable[[int, int, str], None] = lambda *_: None,
        on_cached: Callable[[CacheChange], None] = lambda _: None,
        on_explain: Callable[[Explain], None] = lambda _: None,
        on_reload: Callable[[Reload], None] = lambda _: None,
        on_portions: Callable[[dict[str, int]], None] = lambda _: None,
    ) -> None:
        self._on_portions = on_portions
        self._on_reload = on_reload
        self._on_response_of = on_response_of
        self._on_cached = on_cached
        self._on_explain = on_explain
        self._on_fleet = on_fleet
        self._on_learned = on_learned
        self._on_drain = on_drain
        self._on_lost = on_lost
        self._closing = False
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._frames = Frames(_down.decode, self._received, self._lost)

    async def connect(self, descriptor: int) -> Hello:
        """Take over the inherited channel and waits for Hello. ConnectionError if it ends."""
        os.set_inheritable(descriptor, False)
        await self._frames.attach(socket.socket(fileno=descriptor))
        return await self._hello

    def ready(self, doubts: dict[str, tuple[str, ...]]) -> None:
        """Report that the worker listens. doubts: see WorkerReady."""
        self._frames.send(WorkerReady(doubts))

    def failed(self, reason: str) -> None:
        """Report that the worker cannot start; `reason` is one sentence for the operator."""
        self._frames.send(Failed(reason))

    def reloaded(self, number: int, reason: str = "") -> None:
        """Answer a Reload."""
        self._frames.send(Reloaded(number, reason))

    def learned(self, slot: int, blocks: bytes, tenant: str) -> bool:
        """Tell the other workers of a routed prefix; False if it was dropped."""
        return self._frames.offer(Learned(slot, blocks, tenant))

    def kept(self, name: str, slot: int, tenant: str) -> bool:
        """Tell of a response that a replica made; False if it was dropped."""
        return self._frames.offer(Kept(name, slot, tenant))

    def whose_response(self, number: int, name: str) -> bool:
        """Asks whose a response is; False if there is nobody to say."""
        return self._frames.offer(WhoseResponse(number, name))

    def suspect(self, slot: int) -> bool:
        """Asks for a probe of a replica that did not answer; False if it was dropped."""
        return self._frames.offer(Suspect(slot))

    def proof(self, news: ProofNews) -> None:
        """Tell what was found out about the ids of a replica."""
        self._frames.send(ProofFound(news))

    def routed(self, samples: list[RoutingSample]) -> bool:
        """Show some of the requests routed lately; False if they were dropped."""
        return self._frames.offer(RoutedSamples(samples))

    def stalled(self, stall: Stall) -> bool:
        """Tell of a stall; False if it was dropped."""
        return self._frames.offer(Stalled(stall))

    def beats(self, lateness: bytes) -> bool:
        """Tell how late the heartbeats were (packed float32 seconds); False if it was dropped."""
        return self._frames.offer(Beats(lateness))

    def places(self, places: dict[str, tuple[int, int, int]]) -> None:
        """Tell what changed of the places that tenants share."""
        self._frames.send(Places(places))

    def explained(self, number: int, status: int, body: bytes) -> None:
        """Answer an Explain."""
        self._frames.send(Explained(number, status, body))

    def close(self) -> None:
        """Close the channel once what was sent has left."""
        self._closing = True
        self._frames.close()

    def _received(self, message: Down) -> None:
        match message:
            case Hello():
                if not self._hello.done():
                    self._hello.set_result(message)
            case FleetUpdate(state):
                self._on_fleet(state)
            case Reload():
                self._on_reload(message)
            case Learned(slot, blocks, tenant):
                self._on_learned(slot, blocks, tenant)
            case ResponseOf(number, slot, tenant):
                self._on_response_of(number, slot, tenant)
            case Cached(change):
                self._on_cached(change)
            case Explain():
                self._on_explain(message)
            case Portions(portions):
                self._on_portions(portions)
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
        self._frames = Frames(_up.decode, on_message, on_lost)

    async def connect(self, end: socket.socket) -> None:
        """Take over this end of the socketpair."""
        await self._frames.attach(end)

    def send(self, message: Hello | FleetUpdate | Reload | Explain | Portions | Drain) -> None:
        """Send a control message; nothing happens if the worker is gone."""
        self._frames.send(message)

    def offer(self, message: Learned | ResponseOf) -> bool:
        """Send a hint unless the worker is behind; False if it was dropped."""
        return self._frames.offer(message)

    @property
    def behind(self) -> bool:
        """Whether the worker does not keep up, or is gone."""
        return self._frames.behind

    def cached(self, change: CacheChange) -> None:
        """Send what a replica's cache holds."""
        self._frames.send(Cached(change))

    def close(self) -> None:
        """Close the channel."""
        self._frames.close()
