"""prefix-hash: by a hash of the prompt's head, to the same replica every time.

The head is the blocks up to the end of the system prompt (or of the first message, where there
is no system prompt that fills a block); of a prompt whose messages are not known, the first
`head_limit_tokens`. Stateless: it needs no index, and several gateways agree without talking. A
head that more ask for than one replica's share spills to the next in its order.
"""

from typing import ClassVar

from tokenlane.config.settings import RoutingSettings
from tokenlane.prompt import HASH_BYTES
from tokenlane.routing.consistent_hashing import bounded, preference, ranks
from tokenlane.routing.cost import decide, idlest
from tokenlane.routing.decision import Candidates, Decision, Query, Reason


class PrefixHash:
    """See the module's docstring."""

    name: ClassVar[str] = "prefix-hash"
    uses_prefix: ClassVar[bool] = True

    def __init__(self, settings: RoutingSettings) -> None:
        self._limit_tokens = settings.head_limit_tokens
        self._load_factor = settings.load_factor

    def choose(self, query: Query, among: Candidates) -> Decision:
        key = self.key(query)
        if key is None:
            best = idlest(among, range(len(among.slots)))
            return decide(self.name, query, among, among.queued_tokens, best, Reason.LEAST_LOAD)
        order = preference(key, among)
        best = bounded(order, among, self._load_factor)
        reason = Reason.HASH if best == order[0] else Reason.SPILL
        return decide(self.name, query, among, ranks(order), best, reason)

    def key(self, query: Query) -> int | None:
        """The chained hash of the head's last block; None of a prompt without a full block."""
        count = len(query.blocks) // HASH_BYTES
        if not count:
            return None
        head = (query.head_tokens or self._limit_tokens) // query.block_tokens
        last = min(max(head, 1), count) - 1
        return memoryview(query.blocks).cast("Q")[last]
