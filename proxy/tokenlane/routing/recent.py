"""Recent work: what was sent to each replica lately, finished or not, and in which order.

In-flight counts forget a request when it ends. Among replicas that are equally idle, the one that
had the least to compute lately should get the next cold conversation, else a quiet fleet keeps
one replica's cache full and the others' empty.

Invariants:
- Only settles ties: it never outweighs a cost or a load.
- Work fades by half every HALF_LIFE_S, so a replica that joins is not given everything until it
  has caught up with a history nobody feels any more.
- A replica never chosen has a random place in the order, so that several workers that start
  together do not all begin with the same one.
"""

from math import exp2
from random import Random
from typing import Final

# About as long as a conversation's blocks stay useful: minutes, not seconds.
HALF_LIFE_S: Final = 300.0


# Work is kept as it would weigh at a fixed moment, growing into the future instead of fading
# into the past: comparing replicas then needs no power each. The moment moves along before
# the weights grow out of a float.
_REBASE_HALF_LIVES: Final = 64.0


class RecentWork:
    """Fading uncached tokens per slot, and when it was last chosen. `now`: monotonic s."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._base_s = 0.0
        self._weights: dict[int, float] = {}
        self._chosen: dict[int, float] = {}
        self._choices = 0

    def chosen(self, slot: int, uncached_tokens: int, now: float) -> None:
        """A request with so much to compute went there."""
        if now - self._base_s > _REBASE_HALF_LIVES * HALF_LIFE_S:
            scale = self.scale(now)
            self._weights = {one: weight * scale for one, weight in self._weights.items()}
            self._base_s = now
        self._weights[slot] = self.weight(slot) + uncached_tokens / self.scale(now)
        self._choices += 1
        self._chosen[slot] = self._choices

    def scale(self, now: float) -> float:
        """What a weight counts for at `now`: tokens = weight * scale."""
        return exp2(max((self._base_s - now) / HALF_LIFE_S, -1000.0))

    def weight(self, slot: int) -> float:
        """Work sent there; comparable between slots at any one time."""
        return self._weights.get(slot, 0.0)

    def chosen_at(self, slot: int) -> float:
        """Rank of its last choice; smaller is longer ago, negative is never."""
        at = self._chosen.get(slot)
        if at is None:
            at = self._chosen[slot] = -1.0 - self._random.random()
        return at

    def remove(self, slot: int) -> None:
        """The replica is gone."""
        self._weights.pop(slot, None)
        self._chosen.pop(slot, None)
