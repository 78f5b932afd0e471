"""The states of a client's connection, and the one table of what leads from each to which.

Invariants:
- What a connection does with bytes that arrive, and which deadline it has, follows from its state.
- A pair that the table lacks cannot happen: it would be a mistake of ours, and is a KeyError.
- Whether the client reads what it is sent is no state: it may stop to in any of them.
"""

from typing import Final

# Compared by this order: up to HEAD there is no request, and from REFUSING on what arrives is
# dropped.
IDLE: Final = 0  # between requests: bytes of the next one have not been looked at yet
HEAD: Final = 1  # the head of a request is incomplete
BODY: Final = 2  # its body is incomplete, whatever its handler does meanwhile
DISCARDING: Final = 3  # it is answered, and the short rest of its body is read and dropped
ANSWERING: Final = 4  # it is read, and its answer is being sent
REFUSING: Final = 5  # it cannot be read, and the error is being sent
LINGERING: Final = 6  # our half is closed; theirs is read, so that no reset destroys the answer
CLOSING: Final = 7  # the connection ends once the client has what was written
CLOSED: Final = 8

# What happens.
HEAD_PART: Final = 0  # bytes that may become a head
HEAD_END: Final = 1  # a head whose body is incomplete
REQUEST_END: Final = 2  # a head that came with its body or has none; else the end of the body
MALFORMED: Final = 3  # a head or a body that cannot be read, or did not come in time
ANSWER_END: Final = 4  # an answer that others may follow was written
LAST_ANSWER: Final = 5  # another one was, and something is unread, or may be
RESUMED: Final = 6  # the client reads again, so that its next request may be served
CLOSE: Final = 7  # it has left, its answer breaks off, or there is nothing more to wait for
LOST: Final = 8  # the transport is closed

_ENDS: Final = {CLOSE: CLOSING, LOST: CLOSED}
_BEFORE_A_REQUEST: Final = {
    HEAD_PART: HEAD,
    HEAD_END: BODY,
    REQUEST_END: ANSWERING,
    MALFORMED: REFUSING,
    RESUMED: IDLE,
}

AFTER: Final[dict[int, dict[int, int]]] = {
    IDLE: _BEFORE_A_REQUEST | _ENDS,
    HEAD: _BEFORE_A_REQUEST | _ENDS,
    BODY: {
        REQUEST_END: ANSWERING,
        MALFORMED: REFUSING,
        ANSWER_END: DISCARDING,
        LAST_ANSWER: LINGERING,
    }
    | _ENDS,
    DISCARDING: {REQUEST_END: IDLE, MALFORMED: LINGERING} | _ENDS,
    ANSWERING: {ANSWER_END: IDLE, LAST_ANSWER: LINGERING} | _ENDS,
    REFUSING: {LAST_ANSWER: LINGERING} | _ENDS,
    LINGERING: _ENDS,
    CLOSING: _ENDS,
    CLOSED: {},
}
