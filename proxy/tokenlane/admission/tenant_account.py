"""A tenant's account: what it may have at once, and what it has. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenlane.admission.parents import Parents
from tokenlane.admission.places import REQUESTS, TOKENS, Place


def fits(held: int, more: int, limit: int) -> bool:
    """Return whether more may be held. A limit of 0 allows anything, and one alone always fits."""
    return not limit or not held or held + more <= limit


def per_worker(limit: int, workers: int) -> int:
    """Return one worker's part of a limit, at least 1; 0 stays 0, for none."""
    return -(-limit // workers) if limit else 0


@dataclass(slots=True, eq=False)
class TenantAccount:
    """A tenant: what it may have and what it has. limit: 0 for none. rank: of its class. shares:
    others serve it too, and of the limits only the portions are ours, by key."""

    name: str
    rank: int = 0
    limit: int = 0
    limit_tokens: int = 0
    running: int = 0
    tokens: int = 0
    shares: bool = False
    portions: dict[str, int] = field(default_factory=dict)
    parents: Parents = field(default_factory=Parents)

    def takes(self, tokens: int) -> bool:
        """Return whether it may have one more request, with so many tokens."""
        if not self.shares:
            return fits(self.running, 1, self.limit) and fits(
                self.tokens, tokens, self.limit_tokens
            )
        requests, queued_tokens = self._portion(REQUESTS), self._portion(TOKENS)
        # A prompt larger than the portion runs alone: under load no portion may ever hold it.
        return (not self.limit or self.running < requests) and (
            not self.limit_tokens
            or (queued_tokens > 0 and fits(self.tokens, tokens, queued_tokens))
        )

    def places(self, waiting: Sequence[int]) -> dict[str, Place]:
        """Return what it has and wants of what is limited, by key. waiting: tokens of each request
        that waits."""
        places = {}
        if self.limit:
            wanted = min(self.running + len(waiting), self.limit)
            places[self.name + REQUESTS] = Place(self._portion(REQUESTS), self.running, wanted)
        if self.limit_tokens:
            wanted = min(self.tokens + sum(waiting), self.limit_tokens)
            places[self.name + TOKENS] = Place(self._portion(TOKENS), self.tokens, wanted)
        return places

    def _portion(self, kind: str) -> int:
        return self.portions.get(self.name + kind, 0)
