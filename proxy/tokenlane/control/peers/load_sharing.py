"""Sharing load with the other gateways: this one's to the store, theirs onto the load board.

Invariants:
- Without a store in the settings nothing runs and nothing is shown.
- Workers write and read the board and notice nothing of this. A store that is down, hangs or
  answers errors costs the others' counts once their lease has ended, and nothing else.
- While the store is away it is tried again all the time, and that is said once.
- What the others have in flight is placed by replica; a slot that has another replica now loses
  what was placed for the last one.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from tokenlane import __version__
from tokenlane.admission.places import Place, place_limits
from tokenlane.channel import messages
from tokenlane.channel.ends import SupervisorEnd
from tokenlane.channel.messages import Portions, Up
from tokenlane.config.settings import Tenant
from tokenlane.control.dashboard.live import FleetRow
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.peers.own_news import OwnNews
from tokenlane.control.peers.peer_message import (
    NO_LOAD,
    Load,
    PeerMessage,
    decode,
    encode,
    replica_key,
)
from tokenlane.control.peers.peer_table import PeerTable
from tokenlane.control.peers.place_ledger import Claims, PlaceLedger
from tokenlane.control.peers.prefix_sharing import PrefixSharing
from tokenlane.control.peers.response_sharing import ResponseSharing
from tokenlane.control.peers.store_client import StoreClient, StoreError
from tokenlane.errors import ConfigError
from tokenlane.fleet_state import FleetState
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import Sample

RETRY_S = 0.2
# Within so many of its intervals what one gateway says has reached the others.
_NEWS_INTERVALS = 3
_TIMER_S = 0.001  # a lease must not end just after we looked

log = logging.getLogger("peers")


@dataclass(eq=False)
class LoadSharing:
    """This gateway among the others. state: its board has a column for them, where there is a
    store. follows: whether a slot's KV events are read. prefixes: what all of them routed.
    responses: what the replicas keep for any of them."""

    state: GatewayState
    follows: Callable[[int], bool]

    def __post_init__(self) -> None:
        self._settings = self.state.settings.fleet
        self.prefixes = PrefixSharing(self.state, self.follows)
        wait_s = _NEWS_INTERVALS * self._settings.share_interval_s if self._settings.store else 0.0
        self.responses = ResponseSharing(self.state.table, wait_s)
        self._gateway = os.urandom(8).hex()
        self._own = self._own_news()
        self._table = PeerTable(self._gateway, self._settings.lease_s)
        self._places = PlaceLedger(self._gateway)
        self._tenants: dict[str, Tenant] | None = None
        # By worker, its channel and the portions it was told.
        self._portions: dict[int, tuple[SupervisorEnd, dict[str, int]]] = {}
        self._slots: dict[int, int] = {}
        self._known: FleetState | None = None
        self._store_up: bool | None = None
        self._reason = "not asked yet"
        self._unread = 0
        self._sent_bytes = 0
        self._received_bytes = 0

    async def run(self) -> None:
        """Shares until cancelled, and says farewell."""
        if not self._settings.store:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._share(), name="peers")
            group.create_task(self._sweep(), name="peer-leases")

    async def _share(self) -> None:
        while True:
            client: StoreClient | None = None
            try:
                client = StoreClient(self._settings)
                self._own = self._own_news()
                await self._exchanges(client)
                # What the others claimed meanwhile was not heard.
                self._places.lost()
                self._store_up = None
            except (StoreError, ConfigError) as error:
                self._lost(str(error))
                # Where not even a client was made, no exchange has looked after the workers.
                self._own_places(time.monotonic())
                await asyncio.sleep(RETRY_S)
            finally:
                if client is not None:
                    await client.close()

    async def _exchanges(self, client: StoreClient) -> None:
        """Exchange news until the store fails, or this process was held for so long that what
        waits in the stream may be from gateways that are gone."""
        interval_s, began_s = self._settings.share_interval_s, time.monotonic()
        try:
            while time.monotonic() - began_s < self._settings.lease_s:
                began_s = time.monotonic()
                places = self._own_places(began_s)
                news = self._own.due(
                    self._own_loads(),
                    places,
                    began_s,
                    time.time(),
                    self.prefixes.due(began_s),
                    self.responses.due(),
                )
                message = encode(news) if news is not None else None
                heard = await client.exchange(message)
                self._sent_bytes += len(message or b"")
                self._take(heard)
                self._places.clock(client.clock_s)
                await asyncio.sleep(max(began_s + interval_s - time.monotonic(), 0.0))
        except asyncio.CancelledError:
            await client.farewell(encode(self._own.farewell()))
            raise

    def _own_news(self) -> OwnNews:
        """Return news that begin with everything, for a store that knows nothing."""
        # Gateways may share the data port, never the admin port.
        name = f"{socket.gethostname()}:{urlsplit(self.state.urls[1]).port}"
        who = PeerMessage(self._gateway, name=name, version=__version__)
        return OwnNews(who, self._settings.lease_s)

    async def _sweep(self) -> None:
        """Leases end whatever the store does."""
        while True:
            now_s = time.monotonic()
            for peer in self._table.sweep(now_s):
                log.warning("gateway %s is gone", peer.name)
            self._place()
            await asyncio.sleep(self._table.next_end_s(now_s) - now_s + _TIMER_S)

    def _take(self, entries: list[bytes]) -> None:
        now_s, wall_s = time.monotonic(), time.time()
        if not self._store_up:
            self._store_up = True
            self._places.connected(now_s)
            self.responses.again()
            log.info("shares load with other gateways through the store")
        for entry in entries:
            self._received_bytes += len(entry)
            message = decode(entry)
            if message is None:
                self._unread += 1
                continue
            peer = self._table.take(message, now_s, wall_s)
            self._take_places(message, now_s)
            if message.prefixes and message.gateway != self._gateway:
                self.prefixes.heard(message.prefixes, self._slots)
            if message.responses and message.gateway != self._gateway:
                self.responses.heard(message.responses, self._slots)
            if peer is not None:
                log.info("gateway %s is seen", peer.name)
                self._own.again()
                self.responses.again()
        self._place()

    def _lost(self, reason: str) -> None:
        self._reason = reason
        self._places.lost()
        if self._store_up is not False:
            self._store_up = False
            log.warning(
                "the store is gone (%s); serving on without the other gateways' load", reason
            )

    def told(self, worker: int, message: Up) -> None:
        """Take what a worker says of what workers and gateways share."""
        match message:
            case messages.Places(places):
                self._places.reported(worker, {key: Place(*one) for key, one in places.items()})
            case messages.Learned():
                self.prefixes.routed(message)
            case messages.Kept(name, slot, tenant):
                self.responses.made(name, slot, tenant)
            case messages.WhoseResponse(number, name):
                answer = partial(self._whose, worker, number)
                # Behind what else has come: another worker told of it before this one was asked.
                asyncio.get_running_loop().call_soon(self.responses.find, name, answer)

    def _whose(self, worker: int, number: int, slot: int, tenant: str) -> None:
        workers = self.state.workers
        if worker < len(workers) and (end := workers[worker].end) is not None:
            end.offer(messages.ResponseOf(number, slot, tenant))

    def _take_places(self, message: PeerMessage, now_s: float) -> None:
        if message.gateway == self._gateway:
            self._places.echoed()
        elif message.leaves:
            self._places.left(message.gateway)
        elif message.gateway in self._table.peers:
            self._places.heard(message.gateway, message.places, now_s, whole=message.whole)

    def _own_places(self, now_s: float) -> Claims:
        """Return what we hold and want, after the workers were told their portions."""
        tenants = self.state.settings.auth.tenants
        if tenants is not self._tenants:
            self._tenants = tenants
            self._places.limit(place_limits(tenants))
        for worker in self.state.workers:
            known = self._portions.get(worker.number)
            # Another process may be there already: looks are far between while the store is away.
            if worker.end is None or (known is not None and known[0] is not worker.end):
                self._places.worker_gone(worker.number)
                self._portions.pop(worker.number, None)
            new = worker.number not in self._portions and worker.state == "ready"
            if new and worker.end is not None:
                self._portions[worker.number] = worker.end, {}
                self._places.worker_came(worker.number)
        said, portions = self._places.due(now_s)
        for number, (end, told) in self._portions.items():
            mine = portions.get(number, {})
            if changed := {key: one for key, one in mine.items() if told.get(key) != one}:
                end.send(Portions(changed))
                told.update(changed)
        return said

    def _own_loads(self) -> dict[int, Load]:
        self._follow()
        requests, queued_tokens = self.state.board.own(list(self._slots.values()))
        return dict(zip(self._slots, zip(requests, queued_tokens)))

    def _follow(self) -> None:
        """Follow the replicas to other slots."""
        fleet = self.state.table.state
        if fleet is self._known:
            return
        slots = {replica_key(replica.id): replica.slot for replica in fleet.replicas}
        if slots != self._slots:
            for slot in set(self._slots.values()) - set(slots.values()):
                self.state.board.place_peers(slot, *NO_LOAD)
            self._slots = slots
            self._table.changed.update(slots)
        self._known = fleet

    def _place(self) -> None:
        self._follow()
        for key in self._table.changed & self._slots.keys():
            self.state.board.place_peers(self._slots[key], *self._table.totals.get(key, NO_LOAD))
        self._table.changed.clear()

    def row(self) -> FleetRow | None:
        """The other gateways and the store, for people; None without one."""
        if not self._settings.store:
            return None
        now_s = time.monotonic()
        peers = sorted(self._table.peers.values(), key=lambda one: one.name)
        return FleetRow(
            name=self._settings.name,
            store="up" if self._store_up else f"down: {self._reason}",
            peers=[peer.row(now_s, self._slots) for peer in peers],
        )

    def samples(self) -> Iterator[Sample]:
        """For the metrics."""
        if not self._settings.store:
            return
        yield families.FLEET_STORE_UP, (), [float(bool(self._store_up))]
        yield families.FLEET_PEERS, (), [float(len(self._table.peers))]
        age_s = self._table.news_age_s(time.monotonic())
        if age_s is not None:
            yield families.FLEET_NEWS_AGE, (), [age_s]
        yield families.FLEET_BYTES, ("sent",), [float(self._sent_bytes)]
        yield families.FLEET_BYTES, ("received",), [float(self._received_bytes)]
        yield families.FLEET_UNREAD, (), [float(self._unread)]
        for replica in self.state.table.replicas:
            requests = self.state.board.peers(replica.slot).requests
            yield families.PEER_IN_FLIGHT, (replica.id,), [float(requests)]
