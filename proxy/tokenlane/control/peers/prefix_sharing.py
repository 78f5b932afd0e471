"""Prefixes that the gateways of a fleet routed: this one's for the others, and theirs for the
workers here.

Invariants:
- Of replicas whose KV events are followed nothing is told: their caches speak for themselves.
- What the others tell is a hint, as what another worker routed is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenlane.channel.messages import Learned
from tokenlane.control.gateway_state import GatewayState
from tokenlane.control.peers.peer_message import replica_key
from tokenlane.routing.router import hashed_block_tokens
from tokenlane.routing.shared_prefixes import PrefixOutbox, read
from tokenlane.tokens.blocks import hashing_mark


@dataclass(eq=False)
class PrefixSharing:
    """follows: whether a slot's KV events are read."""

    state: GatewayState
    follows: Callable[[int], bool]

    def __post_init__(self) -> None:
        self._limit_bytes_per_s = self.state.settings.fleet.prefix_limit_bytes_per_s
        self._block_tokens = 0
        self._hash_alike()

    def routed(self, learned: Learned) -> None:
        """A worker sent these prefixes to replicas."""
        if not self._limit_bytes_per_s:
            return
        for slot, blocks, tenant in learned.prefixes:
            replica = self.state.table.get(slot)
            if replica is not None and not self.follows(slot):
                self._outbox.offer(replica.id, blocks, tenant)

    def due(self, now_s: float) -> bytes:
        """Return what to tell the others now; empty where there is nothing."""
        self._hash_alike()
        return self._outbox.take(now_s)

    def heard(self, batch: bytes, slots: Mapping[int, int]) -> None:
        """Tell the workers what another gateway routed. slots: of our replicas, by their keys."""
        prefixes = [
            (slot, prefix.blocks, prefix.tenant)
            for prefix in read(batch, self._mark)
            if (slot := slots.get(replica_key(prefix.replica_id))) is not None
            and not self.follows(slot)
        ]
        if prefixes:
            for end in self.state.ends():
                end.offer(Learned(prefixes))

    def _hash_alike(self) -> None:
        """Start over where prompts are hashed by other blocks than before."""
        block_tokens = hashed_block_tokens(
            self.state.settings.routing.block_tokens, self.state.table.state
        )
        if block_tokens != self._block_tokens:
            self._block_tokens = block_tokens
            self._mark = hashing_mark(block_tokens)
            self._outbox = PrefixOutbox(self._mark, self._limit_bytes_per_s)
