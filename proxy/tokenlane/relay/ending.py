"""How a relayed answer ended, in the words that the retry of its request goes by."""

from enum import Enum


class RelayEnd(Enum):
    """How an attempt ended, as the retry table asks."""

    COMPLETE = "complete"
    REFUSED = "refused"  # the answer says it generated nothing; it is held, not relayed
    FAILED = "failed"  # the replica failed before anything was relayed
    TRUNCATED = "truncated"  # the replica failed after bytes were relayed
