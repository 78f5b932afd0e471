"""The states of a relayed answer, and the one table of what leads from each to which.

Invariants:
- Nothing goes to the client before RELAYING, so that another replica may still answer instead.
- From COMPLETE on the attempt is over, and what follows is its request's to decide.
- A pair that the table lacks cannot happen: it would be a mistake of ours, and is a KeyError.
"""

from typing import Final

WAITING: Final = 0  # the replica has not answered
HOLDING: Final = 1  # it has begun to answer, and the answer is held back
RELAYING: Final = 2  # the answer is passed on unchanged
FLOWING: Final = 3  # the same, and of what follows only events are counted
STOPPED: Final = 4  # it is broken off: its request is cancelled with the client's connection
COMPLETE: Final = 5  # the client has the whole answer
REFUSED: Final = 6  # the answer says that it generated nothing; it is held
FAILED: Final = 7  # the replica failed before anything was relayed
TRUNCATED: Final = 8  # the replica failed after that

# What happens.
HEAD: Final = 0  # the replica's head
BEGIN: Final = 1  # no other replica could do better, or no other is tried
FIRST_TOKEN: Final = 2  # it was relayed, and whatever follows is passed on as it is framed
STOP: Final = 3  # the gateway stops
END: Final = 4  # the end of an answer, or of one that is passed on though it generated nothing
NOTHING: Final = 5  # the end of an answer that another replica's may replace
FAILURE: Final = 6  # the answer will never be complete

AFTER: Final[dict[int, dict[int, int]]] = {
    WAITING: {HEAD: HOLDING, END: COMPLETE, NOTHING: REFUSED, FAILURE: FAILED},
    HOLDING: {BEGIN: RELAYING, END: COMPLETE, NOTHING: REFUSED, FAILURE: FAILED},
    RELAYING: {FIRST_TOKEN: FLOWING, STOP: STOPPED, END: COMPLETE, FAILURE: TRUNCATED},
    FLOWING: {STOP: STOPPED, END: COMPLETE, FAILURE: TRUNCATED},
    STOPPED: {},
    COMPLETE: {},
    REFUSED: {BEGIN: RELAYING, END: COMPLETE},
    FAILED: {},
    TRUNCATED: {},
}
