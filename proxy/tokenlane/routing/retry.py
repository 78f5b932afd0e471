"""What to do after a failed attempt: the four phases, as a table.

Invariants:
- A prompt is executed at most once, unless the operator asked otherwise (`retry_unanswered`) or
  the replica itself said that it generated nothing.
- After the first byte to the client there is no second attempt, and no end that looks clean.
- When the gateway gives up after trying more than once, it tells clients not to multiply its
  attempts by theirs.
"""

from enum import StrEnum
from typing import Final

import msgspec


class Phase(StrEnum):
    """How far the attempt had come."""

    UNSENT = "unsent"  # no byte of the request left
    SENT = "sent"  # some did; nothing came back
    HEAD = "head"  # the response head is here, the client has nothing yet
    RELAYED = "relayed"  # the client has the head, perhaps more


class Again(StrEnum):
    """When another candidate may be tried."""

    LIMIT = "limit"  # while candidates and the retry limit allow
    ASKED = "asked"  # as above, if the operator accepts a double execution
    ONCE = "once"  # one second attempt per request
    EACH = "each"  # while candidates are left: it cost nothing, and only one of them can do it
    NEVER = "never"


class Ending(StrEnum):
    """What the client gets when nothing is tried any more."""

    NEXT = "next"  # not an end: the next candidate is tried
    ERROR = "error"  # an error answer made here, with `status`
    PASS = "pass"  # the replica's own answer
    BREAK = "break"  # an error event on an event boundary if it is SSE, then abort


class Rule(msgspec.Struct, frozen=True):
    """A row of the table."""

    again: Again
    ending: Ending
    status: int = 0
    retry_after_s: int | None = None


class Step(msgspec.Struct, frozen=True):
    """What to do now. should_retry: value of `x-should-retry`, None to leave it out."""

    ending: Ending
    status: int = 0
    retry_after_s: int | None = None
    should_retry: bool | None = None


_UNAVAILABLE: Final = Rule(Again.LIMIT, Ending.ERROR, 503, retry_after_s=1)
_UNANSWERED: Final = Rule(Again.ASKED, Ending.ERROR, 502)
_TOO_LATE: Final = Rule(Again.ASKED, Ending.ERROR, 504)
_NOTHING_DONE: Final = Rule(Again.ONCE, Ending.PASS)
_NOT_HERE: Final = Rule(Again.EACH, Ending.PASS)
_HALF_ANSWER: Final = Rule(Again.NEVER, Ending.ERROR, 502)
_BROKEN: Final = Rule(Again.NEVER, Ending.BREAK)

# (phase, what happened) -> rule. What happened: UpstreamError.reason, or for a head that came
# whole `busy` (503), `empty` (finish_reason "abort" and no token) and `elsewhere` (404, of what one
# replica alone keeps).
_ROWS: Final = (
    (Phase.UNSENT, "refused unreachable connect_timeout closed reset protocol", _UNAVAILABLE),
    (Phase.SENT, "closed reset protocol truncated", _UNANSWERED),
    (Phase.SENT, "first_byte_timeout", _TOO_LATE),
    (Phase.HEAD, "busy empty", _NOTHING_DONE),
    (Phase.HEAD, "elsewhere", _NOT_HERE),
    (Phase.HEAD, "closed reset protocol truncated", _HALF_ANSWER),
    (Phase.HEAD, "first_byte_timeout chunk_timeout", Rule(Again.NEVER, Ending.ERROR, 504)),
    (Phase.RELAYED, "closed reset protocol truncated chunk_timeout", _BROKEN),
)
TABLE: Final[dict[tuple[Phase, str], Rule]] = {
    (phase, happened): rule for phase, words, rule in _ROWS for happened in words.split()
}

# A word that a phase has no row for still has to end safely: never a second execution.
_OTHERWISE: Final[dict[Phase, Rule]] = {
    Phase.UNSENT: _UNAVAILABLE,
    Phase.SENT: Rule(Again.NEVER, Ending.ERROR, 502),
    Phase.HEAD: _HALF_ANSWER,
    Phase.RELAYED: _BROKEN,
}


def next_step(
    phase: Phase,
    happened: str,
    *,
    attempts: int,
    candidates_left: int,
    retry_limit_count: int,
    retry_unanswered: bool = False,
) -> Step:
    """What follows a failure.

    attempts: made so far, this one included (>= 1). candidates_left: not tried yet.
    retry_limit_count: attempts allowed beyond the first.
    """
    rule = TABLE.get((phase, happened)) or _OTHERWISE[phase]
    allowed = {
        Again.LIMIT: attempts <= retry_limit_count,
        Again.ASKED: retry_unanswered and attempts <= retry_limit_count,
        Again.ONCE: attempts == 1 and retry_limit_count > 0,
        Again.EACH: True,
        Again.NEVER: False,
    }[rule.again]
    if allowed and candidates_left > 0:
        return Step(Ending.NEXT)
    return Step(
        rule.ending,
        rule.status,
        rule.retry_after_s,
        should_retry=False if attempts > 1 and rule.ending is not Ending.BREAK else None,
    )


def may_replace(attempts: int, candidates_left: int, retry_limit_count: int) -> bool:
    """Whether an answer that generated nothing could still be replaced by another replica's:
    what `next_step` would say to it, asked before it is known (an answer is held back only if
    this is so)."""
    return attempts == 1 and candidates_left > 0 and retry_limit_count > 0


class RetryBudget:
    """How many attempts beyond the first a worker may make: over any stretch of requests at most
    `burst_count` + `ratio` of them, so that when everything fails, retries do not multiply the
    load.
    """

    def __init__(self, ratio: float, burst_count: int) -> None:
        self._ratio = ratio
        self._burst = float(burst_count)
        self._left = self._burst

    def request(self) -> None:
        """A request came."""
        self._left = min(self._left + self._ratio, self._burst)

    def spend(self) -> bool:
        """Whether one more attempt may be made; it is counted if so."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
