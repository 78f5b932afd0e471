"""The words of a routing decision: what is asked, what is known, what was decided and why.

Invariants:
- Values only. A policy turns (Query, Candidates) into a Decision and touches nothing else.
- A decision carries its whole cost table, so that it can be explained afterwards. It names one
  replica: where that one fails, the rest are decided on anew, by what is true then.
- Candidates are columns, not rows: what a decision costs the loop is mostly the objects it makes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

from tokenlane.fleet_state import Load


class Reason(StrEnum):
    """Why the first candidate is first (a metric label: closed, one word per decision)."""

    ONLY_ONE = "only-one"  # there was no choice
    PREFIX = "prefix"  # it holds the longest prefix
    COLD = "cold"  # nobody holds a prefix worth following: the least busy
    SPILL = "spill"  # another holds more, or is the hash's own, but is too busy
    HASH = "hash"  # the hash of the prompt's head chose it
    SESSION = "session"  # the session's name chose it
    LEAST_LOAD = "least-load"  # the policy looks at load alone
    TURN = "turn"  # the policy takes turns
    CHANCE = "chance"  # the policy draws
    NO_TOKENIZER = "no-tokenizer"  # ids unknown for this model: prefix taken from the text
    BAIL = "bail"  # ids unknown for this request: prefix taken from the text
    NO_TOKENS = "no-tokens"  # neither ids nor text


NO_SLOTS: Final[frozenset[int]] = frozenset()


class Query:
    """One request as routing sees it.

    blocks: packed uint64 hashes of its prefix (ids, or text where ids are unknown).
    prompt_tokens: tokens in all its prompts; an estimate when `inexact` is set.
    first_tokens: tokens of the prompt that `blocks` belongs to.
    draw: random bits, for policies that draw.
    inexact: how the prompt was known (NO_TOKENIZER, BAIL, NO_TOKENS), which outranks the policy's
    reason; None when the ids are the replica's own.
    session: a number for the session the client named, 0 for none.
    head_tokens: about where the prompt's common beginning ends, 0 where it is not known.
    parent: a number for who waits for it and others, 0 for nobody.
    tenant: whose it is, where there are tenants.
    silent: slots of replicas whose own account is not compared with these ids, which they may make
    otherwise.
    """

    def __init__(
        self,
        blocks: bytes,
        block_tokens: int,
        prompt_tokens: int,
        first_tokens: int,
        draw: int = 0,
        inexact: Reason | None = None,
        session: int = 0,
        head_tokens: int = 0,
        parent: int = 0,
        tenant: str = "",
        silent: frozenset[int] = NO_SLOTS,
    ) -> None:
        self.blocks: Final = blocks
        self.block_tokens: Final = block_tokens
        self.prompt_tokens: Final = prompt_tokens
        self.first_tokens: Final = first_tokens
        self.draw: Final = draw
        self.inexact: Final = inexact
        self.session: Final = session
        self.head_tokens: Final = head_tokens
        self.parent: Final = parent
        self.tenant: Final = tenant
        self.silent: Final = silent


class History(Protocol):
    """What was sent where, for ties."""

    def weight(self, slot: int) -> float:
        """Work sent there lately, finished or not; comparable between slots only."""

    def chosen_at(self, slot: int) -> float:
        """Rank of its last choice; smaller is longer ago."""


class Candidates:
    """The replicas that may take the request (at least one), a column for each fact.

    cached_tokens: what it should report as cached. requests, queued_tokens: in flight now, all
    workers; tokens are uncached ones of requests without a first byte. slowness: how much longer
    a token takes it than their mean; empty while all are alike. siblings: other requests
    in flight that the query's parent waits for. others: the part of requests that other gateways
    sent; empty where none are told.
    """

    def __init__(
        self,
        slots: Sequence[int],
        cached_tokens: Sequence[int],
        requests: Sequence[int],
        queued_tokens: Sequence[int],
        history: History,
        slowness: Sequence[float] = (),
        siblings: int = 0,
        others: Sequence[int] = (),
    ) -> None:
        self.slots: Final = slots
        self.cached_tokens: Final = cached_tokens
        self.requests: Final = requests
        self.queued_tokens: Final = queued_tokens
        self.history: Final = history
        self.slowness: Final = slowness
        self.siblings: Final = siblings
        self.others: Final = others


class Choice:
    """A candidate with its price. cost: tokens where a policy counts them, else its own rank."""

    def __init__(
        self, slot: int, cached_tokens: int, uncached_tokens: int, load: Load, cost: float
    ) -> None:
        self.slot: Final = slot
        self.cached_tokens: Final = cached_tokens
        self.uncached_tokens: Final = uncached_tokens
        self.load: Final = load
        self.cost: Final = cost


class Decision:
    """What was decided, and the whole table it was decided by.

    best: the chosen candidate's place in the columns. costs: of all candidates, by place.
    `policy` and `reason` explain the choice. choice: the candidate to send the request to.
    """

    __slots__ = ("best", "candidates", "choice", "costs", "policy", "query", "reason")

    def __init__(
        self,
        policy: str,
        reason: Reason,
        query: Query,
        candidates: Candidates,
        costs: Sequence[float],
        best: int,
    ) -> None:
        self.policy: Final = policy
        self.reason: Final = reason
        self.query: Final = query
        self.candidates: Final = candidates
        self.costs: Final = costs
        self.best: Final = best
        self.choice: Final = self.row(best)

    @property
    def exact(self) -> bool:
        """Whether the prompt was known by its ids, and the chosen replica does not differ."""
        query = self.query
        return query.inexact is None and (
            not query.silent or self.candidates.slots[self.best] not in query.silent
        )

    def others(self, place: int) -> int:
        """Return how many of a candidate's requests other gateways sent."""
        others = self.candidates.others
        return others[place] if others else 0

    def row(self, place: int) -> Choice:
        """A candidate, by its place."""
        among = self.candidates
        cached_tokens = among.cached_tokens[place]
        return Choice(
            among.slots[place],
            cached_tokens,
            self.query.prompt_tokens - cached_tokens,
            Load(among.requests[place], among.queued_tokens[place]),
            self.costs[place],
        )
