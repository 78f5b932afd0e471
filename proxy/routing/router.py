"""Router: one worker's routing state, and the three verbs the life of a request needs.

    eligible = router.eligible(model, now)              who may
    decision = router.decide(query, eligible)           who does, and why
    with router.attempt(decision.choice, query, now) as lease: ...      counted, and remembered

Invariants:
- `decide` changes nothing, so it also explains a request that is never sent.
- `attempt` is the only place where a choice leaves a trace: the index, the recent work, the
  order of choices, and (by the lease it returns) the in-flight counts.
- Slots are the fleet's; a slot whose replica restarted or changed starts empty.
"""

from functools import partial
from random import Random

from proxy.model import FleetState
from proxy.routing.candidates import Eligible, Marks, eligible, restarted, undoubted
from proxy.routing.cost import cached_limit_tokens
from proxy.routing.decision import Candidates, Choice, Decision, Query
from proxy.routing.index import PrefixIndex
from proxy.routing.lease import Lease, LoadBoard
from proxy.routing.policies import Policy, make_policy
from proxy.routing.recent import RecentWork
from proxy.settings import RoutingSettings


class Router:
    """See the module's docstring. Times: monotonic seconds. draw: makes random bits for a Query.
    uses_prefix: the policy looks at what replicas hold."""

    def __init__(
        self,
        settings: RoutingSettings,
        board: LoadBoard,
        random: Random | None = None,
        policy: Policy | None = None,
    ) -> None:
        """policy: instead of the one that the settings name. Raises ConfigError if they name none
        that is known."""
        self._policy = policy or make_policy(settings)
        self._board = board
        random = random or Random()
        self._block_tokens = settings.block_tokens
        self._fleet = FleetState(version=0, replicas=())
        self._eligible: dict[str | None, Eligible] = {}
        self._marks = Marks(settings.refused_out_s)
        self._recent = RecentWork(random)
        self.uses_prefix = self._policy.uses_prefix
        self.draw = partial(random.getrandbits, 64)
        self.index = PrefixIndex(settings.index_limit_blocks)

    def update(self, fleet: FleetState) -> None:
        """A new snapshot from the control plane."""
        gone = {replica.slot for replica in self._fleet.replicas}
        gone -= {replica.slot for replica in fleet.replicas}
        for slot in gone:
            self.index.remove(slot)
            self._recent.remove(slot)
            self._marks.clear(slot)
        for slot in restarted(self._fleet, fleet):
            self.index.forget(slot)
            self._marks.clear(slot)
        before = {replica.slot: replica for replica in self._fleet.replicas}
        for replica in fleet.replicas:
            old = before.get(replica.slot)
            if replica.up and (old is None or not old.up):
                self._marks.clear(replica.slot)
            capacity = replica.cache_blocks
            if capacity and replica.block_tokens:
                # The replica counts in its blocks, the index in the queries'.
                own = self.block_tokens(replica.block_tokens)
                capacity = max(capacity * replica.block_tokens // own, 1)
            self.index.set_capacity(replica.slot, capacity)
        self._fleet = fleet
        self._eligible.clear()

    def block_tokens(self, reported: int | None = None) -> int:
        """Tokens per block to hash prompts with: the setting, else what a replica reports."""
        if self._block_tokens:
            return self._block_tokens
        if reported:
            return reported
        known = [replica.block_tokens for replica in self._fleet.replicas if replica.block_tokens]
        return min(known, default=16)

    def eligible(self, model: str | None, now: float) -> Eligible:
        """Who may take a request for `model` (None: any)."""
        known = self._eligible.get(model)
        if known is not None and not self._marks:
            return known
        if known is None:
            known = eligible(self._fleet, model)
            if known.nobody is None:  # names that nobody has are endless, and not remembered
                self._eligible[model] = known
        return undoubted(known, self._marks.out(now))

    def decide(self, query: Query, among: Eligible) -> Decision:
        """Choose among the eligible replicas (at least one) for this request."""
        slots, block_tokens = among.slots, query.block_tokens
        limit_tokens = cached_limit_tokens(query)
        # Prefixes are looked up under every policy: the prediction is always reported.
        held = [blocks * block_tokens for blocks in self.index.match_all(slots, query.blocks)]
        if max(held) > limit_tokens:
            held = [min(tokens, limit_tokens) for tokens in held]
        requests, queued_tokens = self._board.columns(slots)
        among_these = Candidates(slots, held, requests, queued_tokens, self._recent)
        return self._policy.choose(query, among_these)

    def attempt(self, choice: Choice, query: Query, now: float) -> Lease:
        """Remember that the request goes to this replica; the lease counts it while entered."""
        self.index.insert(choice.slot, query.blocks)
        self._recent.chosen(choice.slot, choice.uncached_tokens, now)
        return Lease(self._board, choice.slot, choice.uncached_tokens)

    def learn(self, slot: int, blocks: bytes) -> None:
        """Another worker sent this prefix to the replica."""
        self.index.insert(slot, blocks)

    def unreachable(self, slot: int, now: float, *, refused: bool) -> None:
        """A connection to the replica failed: leave it out for a while.

        refused: nothing listens there, so the process and its cache are gone.
        """
        self._marks.fail(slot, now)
        if refused:
            self.index.forget(slot)

    def __repr__(self) -> str:
        return f"<Router {self._policy.name} {self.index!r} {self._marks!r}>"
