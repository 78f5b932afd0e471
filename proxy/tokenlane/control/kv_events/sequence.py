"""Which messages of a publisher are applied, in which order, and which have to be asked for.

Publishers number their messages from 0 and keep the last ones for a replay. Subscribers miss
messages: those from before they came, and those dropped when a queue was full.

Invariants:
- Messages are applied once and in the order of their numbers; those that come while a replay is
  under way wait for its end.
- Where messages are gone for good, `Lost` says so before the next one is applied: what was known
  before is then not to be believed.
- A live number that does not grow means another publisher (a restart): everything begins anew.
  So does a replay that does not begin with the last message applied, which each question asks for
  too: a publisher that starts again while nobody is connected may have reached the same numbers.
  A question without an answer leaves that open for the next one; a replay that does not reach back
  to that message shows nothing, which is a loss.
- The answer to an older question is not mixed up with that to the last one (`Ask.number`).
- An answer that breaks off, or has a hole, is asked on from there, as long as each brings
  something: an engine that sends a long replay at once drops what its socket has no room for.
"""

import msgspec
from xxhash import xxh3_64_intdigest

# Live messages kept while a replay is under way; beyond them the replay is given up.
WAITING_LIMIT = 20_000
WAITING_LIMIT_BYTES = 128 * 1024 * 1024


class Apply(msgspec.Struct, frozen=True, gc=False):
    """The next message."""

    payload: bytes


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Ask for a replay from this message on. number: which question it is."""

    start: int
    number: int


class Lost(msgspec.Struct, frozen=True, gc=False):
    """So many messages will never be seen."""

    messages: int


class Restarted(msgspec.Struct, frozen=True, gc=False):
    """Another publisher has begun, from message 0."""


Action = Apply | Ask | Lost | Restarted


class MessageSequence:
    """One publisher's messages. can_replay: it answers questions.

    expected: the next message to apply. asking: a question is open. gaps: how often messages
    were missing.
    """

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._last_live = -1
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0
        self._number = 0
        self._asked_from = 0
        self._answered = False
        self._last_digest = 0
        # Whether the publisher may be another one than that of the message `_known`.
        self._unverified = False
        self._known = (0, 0)
        self.asking = False
        self.expected = 0
        self.gaps = 0

    @property
    def position(self) -> tuple[int, int]:
        """The next message to apply, and the digest of the one before."""
        return self.expected, self._last_digest

    def resume(self, position: tuple[int, int]) -> None:
        """Go on where another subscriber is. The first question finds out whether the publisher is
        still the one that it listened to."""
        self.expected, self._last_digest = position
        self._last_live = self.expected - 1

    def ask(self) -> list[Action]:
        """Asks for whatever there may be: at the start, and when nothing has come for long."""
        if not self._can_replay or self.asking:
            return []
        return [self._ask()]

    def live(self, number: int, payload: bytes) -> list[Action]:
        """A message of the live stream."""
        actions: list[Action] = []
        if number <= self._last_live:
            actions.append(Restarted())
            self._waited()
            self.asking = self._unverified = False
            self.expected = 0
        self._last_live = number
        if self.asking and self._waits(number, payload):
            return actions
        if self.asking:
            actions += self._give_up()
        if number > self.expected:
            self.gaps += 1
            if self._can_replay and self._waits(number, payload):
                actions.append(self._ask())
                return actions
        actions += self._take(number, payload)
        return actions

    def replayed(self, question: int, number: int, payload: bytes) -> list[Action]:
        """A message of the replay that answers this question."""
        if not self.asking or question != self._number:
            return []
        if self._unverified:
            known, digest = self._known
            if number < known or (number == known and xxh3_64_intdigest(payload) != digest):
                return self._restart()
            self._unverified = False
            if known < number <= self.expected:
                # Nothing shows any more whose the messages before are.
                self._answered = True
                return [Lost(0), *self._take(number, payload)]
        if self._answered and number > self.expected:
            return [self._ask()]
        self._answered = True
        return self._take(number, payload)

    def ended(self, question: int) -> list[Action]:
        """The replay is complete: what waited follows."""
        if not self.asking or question != self._number:
            return []
        self.asking = False
        if self._unverified:
            return self._restart()
        waiting = self._waited()
        actions: list[Action] = []
        for at, (number, payload) in enumerate(waiting):
            if number > self.expected > self._asked_from:
                # The replay helped, and something was missed meanwhile.
                self.gaps += 1
                for later in waiting[at:]:
                    self._waits(*later)
                actions.append(self._ask())
                break
            actions += self._take(number, payload)
        return actions

    def failed(self, question: int) -> list[Action]:
        """No answer, or no end of it. Of what it brought the rest is asked for; without any, go on
        with what there is."""
        if not self.asking or question != self._number:
            return []
        if self.expected > self._asked_from:
            return [self._ask()]
        return self._give_up()

    def _give_up(self) -> list[Action]:
        self.asking = False
        waiting = self._waited()
        return [action for number, payload in waiting for action in self._take(number, payload)]

    def _waits(self, number: int, payload: bytes) -> bool:
        """Keep a message until the replay is over. False where there is no room."""
        size_bytes = self._waiting_bytes + len(payload)
        if len(self._waiting) >= WAITING_LIMIT or size_bytes > WAITING_LIMIT_BYTES:
            return False
        self._waiting.append((number, payload))
        self._waiting_bytes = size_bytes
        return True

    def _waited(self) -> list[tuple[int, bytes]]:
        """Return what has waited, and keep nothing of it."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return waiting

    def _ask(self) -> Ask:
        self.asking = True
        self._number += 1
        self._asked_from = self.expected
        self._answered = False
        if not self._unverified:
            self._known = (self.expected - 1, self._last_digest)
            self._unverified = self.expected > 0
        return Ask(max(self._known[0], 0), self._number)

    def _restart(self) -> list[Action]:
        """The publisher is another one than it was."""
        self._waited()
        self._last_live = -1
        self.expected = 0
        self._unverified = False
        return [Restarted(), self._ask()]

    def _take(self, number: int, payload: bytes) -> list[Action]:
        missing = number - self.expected
        if missing < 0:
            return []  # seen already, in a replay
        self.expected = number + 1
        self._last_digest = xxh3_64_intdigest(payload)
        return [Lost(missing), Apply(payload)] if missing else [Apply(payload)]
