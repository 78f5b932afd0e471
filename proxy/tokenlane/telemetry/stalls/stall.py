"""One stall, as it is reported to the control plane and shown at `/stalls`."""

import msgspec


class InHand(msgspec.Struct, frozen=True):
    """A request the worker had in hand. stage: of its life, as in `tokenlane_stage_seconds`."""

    request_id: str
    route: str
    stage: str


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a data loop served no request.

    at_s: Unix time of its beginning; began_s: the same on time.monotonic(), which processes share.
    length_s: how long. stack: `file:line function`, innermost first, empty where none was seen.
    in_hand: the first few of in_hand_count requests. held_s: for how much CPU time, at the least,
    one piece of work held the loop; little where many small ones came at once.

    What the cause was decided by, since the beat before: cpu_s of the loop's thread, others_cpu_s
    of the process's other threads, gc_s in the garbage collector, waits (times the loop's thread
    went to sleep), watchdog_waits (times the watchdog's did), watched_after_s (how long that was
    kept from its first look; None where it got none), states (of the loop's thread, in the
    kernel's letters, one a look).
    """

    worker: int
    at_s: float
    began_s: float
    length_s: float
    cause: str
    stack: tuple[str, ...] = ()
    in_hand: tuple[InHand, ...] = ()
    in_hand_count: int = 0
    cpu_s: float = 0.0
    others_cpu_s: float = 0.0
    gc_s: float = 0.0
    held_s: float = 0.0
    waits: int = 0
    watchdog_waits: int = 0
    watched_after_s: float | None = None
    states: str = ""
