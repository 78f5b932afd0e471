"""KV events in the control plane: who publishes, what it amounts to, and who is told.

Invariants:
- A replica whose events cannot be had or believed is no fault: workers then use their own index.
- A replica whose process is gone loses its account at once (`gone`), and is asked anew for all it
  has when it is back.
- Accounts are hashed as the workers hash prompts; when that changes they start over.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import aiohttp
import msgspec
import zmq
import zmq.asyncio

from tokenlane.config.settings import Settings
from tokenlane.control.fleet_table import base_url
from tokenlane.control.kv_events.account import PublisherAccount
from tokenlane.control.kv_events.batches import Medium
from tokenlane.control.kv_events.feed import End, Feed
from tokenlane.control.kv_events.peer_accounts import PeerAccounts
from tokenlane.control.kv_events.publishers import EventEndpoint, configured, discover
from tokenlane.control.kv_events.sockets import Subscription
from tokenlane.control.waits import set_within
from tokenlane.fleet_state import FleetState, ReplicaState, Standing
from tokenlane.routing.router import hashed_block_tokens
from tokenlane.telemetry.metrics import families
from tokenlane.telemetry.metrics.segment import Sample

# Workers that have just started are told within this, and replicas that did not answer are asked
# again after ASK_AGAIN_S.
FLUSH_LIMIT_S = 0.25
ASK_AGAIN_S = 5.0
# Publishers that are asked for all they kept at the same time. One loop reads the answers, so that
# more would only take more memory.
BEGINNINGS = 2

Session = Callable[[], aiohttp.ClientSession]

log = logging.getLogger("kv")


class _Plan(msgspec.Struct, frozen=True):
    """What decides the subscriptions of a replica."""

    endpoints: tuple[EventEndpoint, ...]
    model: str
    block_tokens: int


@dataclass(eq=False)
class KvEvents:
    """Of all replicas. fleet: the latest snapshot. ends: the workers. on_capacity: told (slot,
    blocks) that a cache was seen to hold, in the replica's blocks. peers: asked for what they
    know of a replica before it is."""

    settings: Settings
    fleet: Callable[[], FleetState]
    ends: Callable[[], Iterable[End]]
    on_capacity: Callable[[int, int], None] = lambda _slot, _blocks: None
    peers: PeerAccounts = field(default_factory=PeerAccounts)

    def __post_init__(self) -> None:
        self._kv = self.settings.kv_events
        self._configured = {
            base_url(backend): configured(source) for backend, source in self._kv.sources.items()
        }
        self._feed = Feed()
        self._beginnings = asyncio.Semaphore(BEGINNINGS)
        self._subscriptions: dict[int, list[Subscription]] = {}
        self._changed: dict[int, asyncio.Event] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._begin: Callable[[int], None] | None = None
        self._dirty = asyncio.Event()
        self._told_names: set[int] = set()
        self._sized: set[int] = set()

    async def run(self, session: Session) -> None:
        """Subscribes and tells until cancelled. session: returns the client that asks replicas
        where they publish."""
        context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flush())

                def begin(slot: int) -> None:
                    self._watches[slot] = group.create_task(
                        self._watch(context, session, slot), name=f"kv-{slot}"
                    )

                self._begin = begin
                self.update()
        finally:
            self._begin = None
            context.destroy(linger=0)

    def update(self) -> None:
        """The fleet's shape has changed, or who belongs to it."""
        for changed in self._changed.values():
            changed.set()
        if self._begin is None:
            return
        slots = {replica.slot for replica in self.fleet().replicas}
        for slot in self._changed.keys() - slots:
            self._watches.pop(slot).cancel()
            del self._changed[slot]
            self._subscriptions.pop(slot, None)
            self._told_names.discard(slot)
            self._sized.discard(slot)
        for slot in slots - self._changed.keys():
            self._changed[slot] = asyncio.Event()
            self._begin(slot)

    def gone(self, slot: int) -> None:
        """The replica's process is not there any more."""
        for subscription in self._subscriptions.get(slot, ()):
            subscription.reset()

    @property
    def accounts(self) -> list[PublisherAccount]:
        """Of all subscriptions."""
        return [one.account for many in self._subscriptions.values() for one in many]

    def account(self, replica_id: str, rank: int) -> PublisherAccount | None:
        """Of one rank of a replica; None where its events are not followed."""
        slots = [one.slot for one in self.fleet().replicas if one.id == replica_id]
        subscriptions = self._subscriptions.get(slots[0], ()) if slots else ()
        found = [one.account for one in subscriptions if one.account.rank == rank]
        return found[0] if found else None

    def follows(self, slot: int) -> bool:
        """Whether anything is known of a replica's cache by its events."""
        subscriptions = self._subscriptions.get(slot, ())
        return any(one.account.standing is not Standing.NONE for one in subscriptions)

    def samples(self) -> Iterator[Sample]:
        """For the control plane's metrics."""
        names = {replica.slot: replica.id for replica in self.fleet().replicas}
        for account in self.accounts:
            labels = names.get(account.slot, ""), str(account.rank)
            for kind, count in account.events.items():
                yield families.KV_EVENTS, (*labels, kind), [float(count)]
            yield families.KV_GAPS, labels, [float(account.gaps)]
            yield families.KV_LOST, labels, [float(account.lost_messages)]
            yield families.KV_LAG, labels, [account.lag_s]
            yield families.KV_STANDING, (*labels, account.standing), [1.0]
            for medium in Medium:
                held = float(account.ledger.held_blocks(medium))
                yield families.KV_BLOCKS, (*labels, medium), [held]
            yield families.KV_LEDGER_BYTES, labels, [float(account.ledger.size_bytes)]

    async def _flush(self) -> None:
        while True:
            if await set_within(self._dirty, FLUSH_LIMIT_S):
                await asyncio.sleep(self._kv.flush_interval_s)
            self._dirty.clear()
            self._feed.flush(self.accounts, self.ends())
            self._learn()

    def _learn(self) -> None:
        """A cache that evicts is full: what it held then is its size."""
        for replica in self.fleet().replicas:
            if replica.cache_blocks is not None and replica.slot not in self._sized:
                continue  # it says so itself
            subscriptions = self._subscriptions.get(replica.slot, ())
            peak_blocks = sum(one.account.peak_blocks for one in subscriptions)
            if peak_blocks:
                self._sized.add(replica.slot)
                self.on_capacity(replica.slot, peak_blocks)

    async def _watch(self, context: zmq.asyncio.Context, session: Session, slot: int) -> None:
        changed = self._changed[slot]
        while True:
            changed.clear()
            plan = await self._plan(session, slot, None)
            if plan is not None and plan.endpoints:
                await self._follow(context, session, slot, plan)
                continue
            await set_within(changed, ASK_AGAIN_S if plan is None else None)

    async def _follow(
        self,
        context: zmq.asyncio.Context,
        session: Session,
        slot: int,
        plan: _Plan,
    ) -> None:
        """Subscribes as planned until there is another plan."""
        subscriptions = [
            Subscription(
                context,
                endpoint,
                PublisherAccount(
                    slot,
                    rank,
                    ranks=len(plan.endpoints),
                    model=plan.model,
                    block_tokens=plan.block_tokens,
                    limit_blocks=self.settings.routing.index_limit_blocks,
                    can_replay=endpoint.replay is not None,
                ),
                self._dirty.set,
                self._beginnings,
                check_interval_s=self._kv.check_interval_s,
                answer_deadline_s=self._kv.answer_deadline_s,
            )
            for rank, endpoint in enumerate(plan.endpoints)
        ]
        replica_id = self._replica(slot).id
        await asyncio.gather(*(self.peers.fill(one.account, replica_id) for one in subscriptions))
        self._subscriptions[slot] = subscriptions
        self._dirty.set()
        log.info(
            "replica %s publishes KV events (%d rank(s))",
            self._replica(slot).id, len(plan.endpoints),
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._carry(one)) for one in subscriptions]
            await self._other_plan(session, slot, plan)
            for task in tasks:
                task.cancel()
        for one in subscriptions:
            one.account.retire()
        self._dirty.set()

    async def _carry(self, subscription: Subscription) -> None:
        try:
            await subscription.run()
        except* zmq.ZMQError as errors:
            # The address is wrong: the operator's, and no reason to stop serving.
            log.error("%r cannot be used: %s", subscription, errors.exceptions[0])  # noqa: TRY400 - the sentence says it all
        except* Exception:
            # One replica must not end what is known of the others.
            log.exception("following %r failed unexpectedly", subscription)
            subscription.account.retire()
            self._dirty.set()

    async def _other_plan(self, session: Session, slot: int, plan: _Plan) -> None:
        """Returns when the replica's subscriptions should be others."""
        changed, known, restarted = self._changed[slot], self._replica(slot), False
        while True:
            await changed.wait()
            changed.clear()
            now = self._replica(slot)
            if now.started_s != known.started_s and known.started_s:
                self.gone(slot)
            if (now.started_s, now.incarnation) != (known.started_s, known.incarnation):
                restarted = True
            known = now
            new = await self._plan(session, slot, None if restarted else plan.endpoints)
            if new is not None:
                restarted = False
                if new != plan:
                    return

    async def _plan(
        self,
        session: Session,
        slot: int,
        endpoints: tuple[EventEndpoint, ...] | None,
    ) -> _Plan | None:
        """What to subscribe to; None if it cannot be known now. endpoints: those known."""
        replica = self._replica(slot)
        names = [name for name in replica.models if name not in replica.adapters]
        if not replica.up or not names:
            return None
        if endpoints is None:
            endpoints = self._configured.get(replica.url)
        if endpoints is None:
            endpoints = await discover(session(), replica.url) if self._kv.discover else ()
        if endpoints is None:
            return None
        numbers = [one.rank for one in endpoints]
        if len(numbers) > 1 and numbers != list(range(len(numbers))):
            log.warning(
                "replica %s does not name all its ranks: its KV events are not used", replica.id
            )
            endpoints = ()
        if endpoints and len(names) > 1:
            # An event does not say by which name a prompt came, and prompts are hashed by it.
            if slot not in self._told_names:
                self._told_names.add(slot)
                log.warning(
                    "replica %s has its model under several names: its KV events are not used",
                    replica.id,
                )
            endpoints = ()
        block_tokens = hashed_block_tokens(self.settings.routing.block_tokens, self.fleet())
        return _Plan(endpoints, names[0], block_tokens)

    def _replica(self, slot: int) -> ReplicaState:
        # Whoever asks belongs to a replica that is there: the others were cancelled (`update`).
        return next(replica for replica in self.fleet().replicas if replica.slot == slot)
