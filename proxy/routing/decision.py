"""The words of a routing decision: what is asked, what is known, what was decided and why.

Invariants:
- Values only. A policy turns (Query, Candidates) into a Decision and touches nothing else.
- A decision ranks every candidate it was given, so the next one is known before it is needed,
  and carries its whole cost table, so that it can be explained afterwards.
"""

from enum import StrEnum

import msgspec

from proxy.model import Load, Prompt


class Reason(StrEnum):
    """Why the first candidate is first (a metric label: closed, one word per decision)."""

    ONLY_ONE = "only-one"  # there was no choice
    PREFIX = "prefix"  # it holds the longest prefix
    COLD = "cold"  # nobody holds a prefix worth following: the least busy
    SPILL = "spill"  # another holds more, but is too busy
    LEAST_LOAD = "least-load"  # the policy looks at load alone
    TURN = "turn"  # the policy takes turns
    CHANCE = "chance"  # the policy draws
    NO_TOKENIZER = "no-tokenizer"  # ids unknown for this model: prefix taken from the text
    BAIL = "bail"  # ids unknown for this request: prefix taken from the text
    NO_TOKENS = "no-tokens"  # neither ids nor text


# Reasons that say how the prompt was known; they outrank the policy's own.
INEXACT = frozenset({Reason.NO_TOKENIZER, Reason.BAIL, Reason.NO_TOKENS})


class Query(msgspec.Struct, frozen=True, gc=False):
    """One request as routing sees it.

    blocks: packed uint64 hashes of its prefix (ids, or text where ids are unknown).
    prompt_tokens: tokens in all its prompts; an estimate when `inexact` is set.
    first_tokens: tokens of the prompt that `blocks` belongs to.
    draw: random bits, for policies that draw.
    inexact: one of INEXACT, or None when the ids are the replica's own.
    """

    blocks: bytes
    block_tokens: int
    prompt_tokens: int
    first_tokens: int
    draw: int = 0
    inexact: Reason | None = None

    @classmethod
    def of(cls, prompt: Prompt, draw: int = 0) -> "Query":
        """The query of a request whose ids are known."""
        first_tokens = len(prompt.sequences[0]) // 4 if prompt.sequences else 0
        return cls(prompt.blocks, prompt.block_tokens, prompt.tokens, first_tokens, draw)


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica that may take the request.

    cached_tokens: what it should report as cached. load: in flight now, all workers.
    recent_tokens: uncached tokens sent there lately, finished or not (decayed).
    chosen_at: rank of its last choice; smaller is longer ago.
    """

    slot: int
    cached_tokens: int
    load: Load
    recent_tokens: float = 0.0
    chosen_at: float = 0.0


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its price. cost: tokens for policies that count them, else a rank."""

    slot: int
    cached_tokens: int
    uncached_tokens: int
    load: Load
    cost: float


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Candidates from best to worst; `policy` and `reason` explain the first."""

    policy: str
    reason: Reason
    ranked: tuple[Choice, ...]
    exact: bool = True

    @property
    def first(self) -> Choice:
        """The candidate to try first."""
        return self.ranked[0]
