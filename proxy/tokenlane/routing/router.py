"""Router: one worker's routing state, and the three verbs the life of a request needs.

    eligible = router.eligible(model, now)              who may
    decision = router.decide(query, eligible)           who does, and why
    with router.attempt(decision.choice, query, now) as lease: ...      counted, and remembered

Invariants:
- `decide` changes nothing, so it also explains a request that is never sent.
- `attempt` is the only place where a choice leaves a trace: the index, the recent work, the
  order of choices, and (by the lease it returns) the in-flight counts.
- Where a replica tells what its cache holds (KV events), that and what is on its way to it is
  what a policy sees; its own index otherwise, and where the prompt's ids are not known.
- Slots are the fleet's; a slot whose replica restarted or changed starts empty.
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from tokenlane.config.settings import HealthSettings, RoutingSettings
from tokenlane.fleet_state import CacheChange, FleetState, Standing
from tokenlane.routing.candidates import (
    Eligible,
    LeftOut,
    Marks,
    eligible,
    restarted,
    roomy,
    sparing,
    undoubted,
)
from tokenlane.routing.cost import cached_limit_tokens
from tokenlane.routing.decision import Candidates, Choice, Decision, Query
from tokenlane.routing.health import Health
from tokenlane.routing.index import PrefixIndex
from tokenlane.routing.lease import Lease, LoadBoard, Siblings
from tokenlane.routing.pending import Pending
from tokenlane.routing.policies import Policy, make_policy
from tokenlane.routing.progress import Progress
from tokenlane.routing.ranks import Ranks
from tokenlane.routing.recent import RecentWork
from tokenlane.routing.truth import Truth


def hashed_block_tokens(setting: int, fleet: FleetState) -> int:
    """Tokens per block that prompts are hashed by: the setting, else the smallest reported."""
    if setting:
        return setting
    known = [replica.block_tokens for replica in fleet.replicas if replica.block_tokens]
    return min(known, default=16)


class Router:
    """See the module's docstring. Times: monotonic seconds. draw: makes random bits for a Query.
    uses_prefix: the policy looks at what replicas hold."""

    def __init__(
        self,
        settings: RoutingSettings,
        board: LoadBoard,
        random: Random | None = None,
        health: HealthSettings | None = None,
        policy: Policy | None = None,
    ) -> None:
        """policy: instead of the one that the settings name. Raises ConfigError if they name none
        that is known."""
        self._policy = policy or make_policy(settings)
        self._board = board
        random = random or Random()
        self._block_tokens = settings.block_tokens
        self._cache_blocks = settings.cache_blocks
        self._replica_limit = settings.replica_limit_count
        self._fleet = FleetState(version=0, replicas=())
        self._slots: frozenset[int] = frozenset()
        self._names: frozenset[str] = frozenset()
        # By model: those that some replica lists, and None. All other names have the same answer.
        self._eligible: dict[str | None, Eligible] = {}
        self._unlisted: Eligible | None = None
        self._marks = Marks(settings.refused_out_s)
        self._recent = RecentWork(random)
        self.health = Health(health or HealthSettings(), random.random)
        self.progress = Progress()
        self.uses_prefix = self._policy.uses_prefix
        self.draw = partial(random.getrandbits, 64)
        self.index = PrefixIndex(settings.index_limit_blocks, settings.tenant_keep_s)
        self.truth = Truth(settings.host_block_worth)
        self.pending = Pending()
        self._ranks = Ranks(settings.alpha)
        self.siblings = Siblings()

    def configure(self, settings: RoutingSettings, health: HealthSettings) -> None:
        """From the next decision on; what is known of caches stays. The sizes of blocks, caches
        and the index are those of the start. Raises ConfigError, and then nothing is different."""
        self._policy = make_policy(settings)
        self.uses_prefix = self._policy.uses_prefix
        self._replica_limit = settings.replica_limit_count
        self.index.keep_s = settings.tenant_keep_s
        self._marks.out_s = settings.refused_out_s
        self.truth.host_worth = settings.host_block_worth
        self._ranks.alpha = settings.alpha
        self.health.settings = health

    def update(self, fleet: FleetState) -> None:
        """A new snapshot from the control plane."""
        gone = {replica.slot for replica in self._fleet.replicas}
        gone -= {replica.slot for replica in fleet.replicas}
        for slot in gone:
            self.index.remove(slot)
            self.truth.remove(slot)
            self.pending.forget(slot)
            self._recent.remove(slot)
            self._marks.clear(slot)
            self.health.forget(slot)
            self.progress.remove(slot)
            self._ranks.forget(slot)
        # Where nobody was up, nobody needs sparing.
        sparing = any(replica.up for replica in self._fleet.replicas)
        empty = set(restarted(self._fleet, fleet))
        for slot in empty:
            self.index.forget(slot)
            self.pending.forget(slot)
            self._marks.clear(slot)
            self.progress.remove(slot)
            if sparing:
                self.health.rise(slot)
        self.health.fleet(fleet.replicas)
        before = {replica.slot: replica for replica in self._fleet.replicas}
        for replica in fleet.replicas:
            old = before.get(replica.slot)
            if replica.up and (old is None or not old.up):
                self._marks.clear(replica.slot)
                if replica.slot not in empty:
                    self.health.forget(replica.slot)
            capacity = replica.cache_blocks or self._cache_blocks
            if capacity and replica.block_tokens:
                # The replica counts in its blocks, the index in the queries'.
                own = self.block_tokens(replica.block_tokens)
                capacity = max(capacity * replica.block_tokens // own, 1)
            self.index.set_capacity(replica.slot, capacity)
        self._fleet = fleet
        self._slots = frozenset([replica.slot for replica in fleet.replicas])
        self._names = frozenset(
            [name for replica in fleet.replicas for name in (*replica.models, *replica.adapters)]
        )
        self._eligible.clear()
        self._unlisted = None

    def block_tokens(self, reported: int | None = None) -> int:
        """Tokens per block to hash prompts with: the setting, else what a replica reports."""
        if self._block_tokens:
            return self._block_tokens
        if reported:
            return reported
        return hashed_block_tokens(0, self._fleet)

    def eligible(self, model: str | None, now: float) -> Eligible:
        """Who may take a request for `model` (None: any)."""
        listed = model is None or model in self._names
        known = self._eligible.get(model) if listed else self._unlisted
        if known is not None and not self._marks.until and not self.health.troubled:
            return known if not self._replica_limit else self._roomy(known)
        if known is None:
            known = eligible(self._fleet, model)
            if listed:
                self._eligible[model] = known
            else:
                self._unlisted = known
        out = self._marks.out(now)
        if self.health.troubled:
            out = {**dict.fromkeys(self.health.ejected(now), LeftOut.EJECTED), **out}
        among = undoubted(known, out)
        if self._replica_limit:
            among = self._roomy(among)
        return sparing(among, self.health.spared(now)) if self.health.rising else among

    def left_out(self, now: float) -> dict[int, LeftOut]:
        """Who is left out now whatever the request, though it is up, and why."""
        left = dict.fromkeys(self.health.rising, LeftOut.STARTING)
        if self._replica_limit and self._slots:
            slots = sorted(self._slots)
            counts = self._board.columns(slots)[0]
            full = [slot for slot, n in zip(slots, counts) if n >= self._replica_limit]
            left |= dict.fromkeys(full, LeftOut.FULL)
        left |= dict.fromkeys(self.health.ejected(now), LeftOut.EJECTED)
        return {**left, **self._marks.out(now)}

    def _roomy(self, among: Eligible) -> Eligible:
        return roomy(among, self._board.columns(among.slots)[0], self._replica_limit)

    def decide(self, query: Query, among: Eligible, now: float | None = None) -> Decision:
        """Choose among the eligible replicas (at least one) for this request. now: to tell how
        far they have come with what they were sent; without it, nowhere."""
        slots, block_tokens = among.slots, query.block_tokens
        limit_tokens = cached_limit_tokens(query)
        # Prefixes are looked up under every policy: the prediction is always reported.
        held = [min(blocks * block_tokens, limit_tokens) for blocks in self._held(slots, query)]
        requests, queued_tokens = self._board.columns(slots)
        if now is not None:
            queued_tokens = self.progress.left(slots, queued_tokens, now)
        slowness = self.progress.slowness(slots)
        siblings = self.siblings.count(query.parent) if query.parent else 0
        among_these = Candidates(
            slots, held, requests, queued_tokens, self._recent, slowness, siblings,
            self._board.others(slots),
        )  # fmt: skip
        return self._policy.choose(query, among_these)

    def attempt(self, choice: Choice, query: Query, now: float) -> Lease:
        """Remember that the request goes to this replica; the lease counts it while entered."""
        guess = choice.cached_tokens // query.block_tokens
        self.index.insert(choice.slot, query.blocks, query.tenant, now, guess)
        self._recent.chosen(choice.slot, choice.uncached_tokens, now)
        slot, uncached_tokens = choice.slot, choice.uncached_tokens
        epoch, rank, at_rank = None, -1, None
        if (
            query.inexact is None
            and self.truth.replicas
            and slot not in query.silent
            and self.truth.standing(slot, query.block_tokens) is not Standing.NONE
        ):
            epoch = self.pending.insert(slot, query.blocks, now)
            held = self.truth.by_rank(slot, query.blocks, memoryview(query.blocks).cast("Q"))
            if held:
                rank = self._ranks.choose(slot, query, held)
                at_rank = self._ranks.attempt(slot, rank, query, uncached_tokens, now)
        return Lease(
            self._board,
            slot,
            uncached_tokens,
            epoch=epoch,
            progress=self.progress,
            now=now,
            rank=rank,
            at_rank=at_rank,
            siblings=self.siblings if query.parent else None,
            parent=query.parent,
        )

    def learn(self, slot: int, blocks: bytes, now: float = 0.0, tenant: str = "") -> None:
        """Another worker sent this prefix of a tenant to the replica, just before `now`."""
        if slot not in self._slots:  # removed meanwhile
            return
        self.index.insert(slot, blocks, tenant, now)
        if slot in self.truth.replicas:
            self.pending.insert(slot, blocks, now, hint=True)

    def cached(self, change: CacheChange) -> None:
        """What a replica's events say of its cache."""
        if change.slot not in self._slots:
            return
        if change.forget:
            self.index.forget(change.slot)
            self.pending.forget(change.slot)
            self._ranks.forget(change.slot)
        self.truth.apply(change)

    def sweep(self, now: float) -> None:
        """Drops what has run out; called about once a second."""
        self.pending.sweep(now)
        self._ranks.sweep(now)

    def sizes_bytes(self) -> dict[str, int]:
        """Memory of what is known of caches, estimated, by part (metric label)."""
        return {
            "own": self.index.size_bytes,
            "events": self.truth.size_bytes,
            "pending": self.pending.size_bytes,
        }

    def _held(self, slots: Sequence[int], query: Query) -> list[int]:
        """Leading blocks of the query that each replica holds, or will in a moment."""
        held = self.index.match_all(slots, query.blocks, query.tenant)
        if query.inexact is not None or not self.truth.replicas:
            return held
        hashes = memoryview(query.blocks).cast("Q")
        for place, slot in enumerate(slots):
            standing = self.truth.standing(slot, query.block_tokens)
            if standing is Standing.NONE or slot in query.silent:
                continue
            pending = self.pending.match(slot, query.blocks, hashes)
            known = self.truth.match(slot, query.blocks, hashes, pending, held[place])
            # Of what an incomplete account does not know, the own index is the best guess.
            held[place] = known if standing is Standing.COMPLETE else max(known, held[place])
        return held

    def failed(self, slot: int, now: float) -> bool:
        """A request failed at the replica; True if that puts it out."""
        return slot in self._slots and self.health.failed(slot, now)  # else removed meanwhile

    def unreachable(self, slot: int, now: float, *, refused: bool) -> None:
        """A connection to the replica failed: leave it out for a while.

        refused: nothing listens there, so the process and its cache are gone.
        """
        self._marks.fail(slot, now)
        if refused and slot in self._slots:
            self.index.forget(slot)
            self.pending.forget(slot)

    def doubt(self, slot: int, now: float) -> None:
        """The replica answered that it aborts what it is asked, as one does that is leaving:
        leave it out for a while."""
        self._marks.fail(slot, now)

    def __repr__(self) -> str:
        return f"<Router {self._policy.name} {self.index!r} {self._marks!r}>"
