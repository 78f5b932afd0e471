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

# About as long as a conversation's blocks stay useful: minutes, not seconds.
HALF_LIFE_S = 300.0


class RecentWork:
    """Decayed uncached tokens per slot, and when it was last chosen. `now`: monotonic s."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._work: dict[int, tuple[float, float]] = {}
        self._chosen: dict[int, float] = {}
        self._choices = 0

    def chosen(self, slot: int, uncached_tokens: int, now: float) -> None:
        """A request with so much to compute went there."""
        self._work[slot] = self.tokens(slot, now) + uncached_tokens, now
        self._choices += 1
        self._chosen[slot] = self._choices

    def tokens(self, slot: int, now: float) -> float:
        """Work sent there, faded to `now`."""
        tokens, at = self._work.get(slot, (0.0, now))
        return tokens * exp2((at - now) / HALF_LIFE_S)

    def chosen_at(self, slot: int) -> float:
        """Rank of its last choice; smaller is longer ago, negative is never."""
        at = self._chosen.get(slot)
        if at is None:
            at = self._chosen[slot] = -1.0 - self._random.random()
        return at

    def remove(self, slot: int) -> None:
        """The replica is gone."""
        self._work.pop(slot, None)
        self._chosen.pop(slot, None)
