"""How fast each replica prefills, and how far it has come with what it was sent.

In-flight counts fall when a first token comes; between two first tokens a replica that is nearly
done looks as busy as one that has just begun. On public traces that alone was worth a tenth of
the mean TTFT.

Invariants:
- Estimates only: what is computed already is taken off a replica's queue, never more than the
  prompt that was sent first and has no first token yet. Nothing here is a count.
- Times are arguments (monotonic seconds). A replica of which nothing is known has made no
  progress, and is as fast as the others.
- A worker sees the prompts it sent itself. With several workers that understates progress; it
  never invents any.
- While replicas differ, what was learned is forgotten with time too: a slow one is avoided, so its
  own answers would hardly tell that it is slow no more.

The rate is the slope of a line through the origin, tokens over the time from when a prompt could
begin (it was sent, or the one before it was answered) to its first token: large prompts weigh
most, so a constant delay beside the prefill hardly counts, and prompts that a replica computes
in one batch add up to the batch's rate.
"""

from collections.abc import Sequence
from typing import Final

# Weight of the past with each prompt: about the last hundred count.
_FADE: Final = 0.99
# While replicas differ, the weight of the past halves in this time as well.
_HALF_LIFE_S: Final = 30.0
# Before a rate is believed: tokens seen in all.
_ENOUGH_TOKENS: Final = 10_000.0
# Rates are compared after so many first tokens, and those this close to each other are equal.
_COMPARE_EVERY: Final = 16
_ALIKE_RATIO: Final = 1.25
_SLOWNESS_LIMIT: Final = 8.0


class _Replica:
    """queue: (tokens, sent) of prompts without a first token, in the order they were sent."""

    __slots__ = ("answered_s", "queue", "seen_tokens", "squares", "token_seconds")

    def __init__(self) -> None:
        self.queue: dict[int, tuple[int, float]] = {}
        self.answered_s = 0.0
        self.seen_tokens = 0.0
        self.squares = 0.0
        self.token_seconds = 0.0

    def fade(self, weight: float) -> None:
        """What was seen so far counts for less."""
        self.seen_tokens *= weight
        self.squares *= weight
        self.token_seconds *= weight

    def rate(self) -> float:
        """Tokens per second; 0.0 while unknown."""
        if self.seen_tokens < _ENOUGH_TOKENS or self.token_seconds <= 0.0:
            return 0.0
        return self.squares / self.token_seconds


class Progress:
    """Prompts sent and answered, by slot."""

    def __init__(self) -> None:
        self._replicas: dict[int, _Replica] = {}
        self._tickets = 0
        self._answers = 0
        self._compared_s = 0.0
        self._compared: dict[int, float] = {}  # rates, empty while those of all are alike

    def sent(self, slot: int, tokens: int, now: float) -> int:
        """A prompt with so many uncached tokens went there; its ticket."""
        replica = self._replicas.get(slot)
        if replica is None:
            replica = self._replicas[slot] = _Replica()
        self._tickets += 1
        replica.queue[self._tickets] = tokens, now
        return self._tickets

    def answered(self, slot: int, ticket: int, now: float) -> None:
        """The prompt's first token came."""
        replica = self._replicas.get(slot)
        found = replica.queue.pop(ticket, None) if replica is not None else None
        if replica is None or found is None:
            return
        tokens, sent_s = found
        seconds = now - max(sent_s, replica.answered_s)
        replica.answered_s = now
        replica.fade(_FADE)
        replica.seen_tokens += tokens
        replica.squares += tokens * tokens
        replica.token_seconds += tokens * seconds
        self._answers += 1
        if self._answers % _COMPARE_EVERY == 0:
            self._compare(now)

    def gone(self, slot: int, ticket: int) -> None:
        """The prompt ended without a first token, or had it long ago."""
        replica = self._replicas.get(slot)
        if replica is not None:
            replica.queue.pop(ticket, None)

    def left(self, slots: Sequence[int], queued_tokens: list[int], now: float) -> list[int]:
        """`queued_tokens` of these replicas without what should be computed by now."""
        return [
            self._left(slot, queued, now) if queued else 0
            for slot, queued in zip(slots, queued_tokens)
        ]

    def _left(self, slot: int, queued: int, now: float) -> int:
        replica = self._replicas.get(slot)
        if replica is None or not replica.queue:
            return queued
        rate = replica.rate()
        if not rate:
            return queued
        tokens, sent_s = next(iter(replica.queue.values()))
        done = (now - max(sent_s, replica.answered_s)) * rate
        computed = min(max(int(done), 0), tokens)
        return queued - min(computed, queued)

    def rate(self, slot: int) -> float:
        """Tokens per second of a replica; 0.0 while unknown."""
        replica = self._replicas.get(slot)
        return replica.rate() if replica is not None else 0.0

    def slowness(self, slots: Sequence[int]) -> Sequence[float]:
        """Of each of these replicas, how much longer a token takes it than their mean (1.0: as
        long). Empty while they are alike or unknown."""
        compared = self._compared
        if not compared:
            return ()
        # Other models' replicas are in there too, and are no measure for these.
        known = [compared[slot] for slot in slots if slot in compared]
        if not known or max(known) <= _ALIKE_RATIO * min(known):
            return ()
        mean = sum(known) / len(known)
        return [
            min(max(mean / compared.get(slot, mean), 1 / _SLOWNESS_LIMIT), _SLOWNESS_LIMIT)
            for slot in slots
        ]

    def remove(self, slot: int) -> None:
        """The replica is gone, or another process: nothing is known of it any more."""
        self._replicas.pop(slot, None)
        self._compared.pop(slot, None)

    def _compare(self, now: float) -> None:
        if self._compared:
            weight = float(0.5 ** ((now - self._compared_s) / _HALF_LIFE_S))
            for replica in self._replicas.values():
                replica.fade(weight)
        self._compared_s = now
        rates = {slot: replica.rate() for slot, replica in self._replicas.items()}
        known = {slot: rate for slot, rate in rates.items() if rate}
        differ = known and max(known.values()) > _ALIKE_RATIO * min(known.values())
        self._compared = known if differ else {}
