"""Failure switches: which request fails, and how.

Invariants:
- A fault of one kind replaces the earlier one of that kind; `clear` takes them all away.
- `count` faults end after so many requests; others stay until they are cleared.
- What a fault does to sockets is the replica's business, and so is when a `for_s` fault ends.
"""

import math
from typing import Literal

import msgspec

Kind = Literal[
    "refuse", "kill", "hang", "close", "die-mid-stream", "stall", "status", "garbage", "abort",
    "error-event", "slow", "drain", "unhealthy",
]  # fmt: skip
# Faults that a request meets, the first match wins; the others are a state of the whole replica.
PER_REQUEST: tuple[Kind, ...] = (
    "hang", "close", "garbage", "status", "abort", "error-event", "die-mid-stream", "stall",
)  # fmt: skip
GENERATING = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "completions", "embeddings", "messages", "responses")
)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One switch.

    kind:
      refuse          the port refuses connections; requests in hand go on
      kill            as kill -9: every connection closes, the port refuses, the cache is lost
      hang            accept, read, never answer
      close           accept, read, close without a byte
      die-mid-stream  close within the answer, after `after_chunks` tokens or `after_bytes` bytes
                      (of a whole answer: half of it), at the latest just before its end
      stall           stop within the answer, at the same places, and keep the connection
      status          answer `status` in vLLM's error shape
      garbage         answer bytes that are not HTTP
      abort           finish_reason "abort" after `after_chunks` tokens
      error-event     engine death after `after_chunks` tokens: what vLLM's streams say of it (an
                      error event, but for responses); 500 where the request does not stream
      slow            prefill and decode take `factor` times as long
      drain           vLLM's shutdown drain: new requests wait for its end, then "abort"; health 200
      unhealthy       /health answers 503, everything else works
    count: requests it hits (refuse, kill, slow, drain, unhealthy: use for_s). for_s: ends by
    itself after so long. reset: die-mid-stream with RST instead of FIN. paths: paths hit instead
    of the generating ones; "*" for all but /sim.
    """

    kind: Kind
    count: int | None = None
    for_s: float | None = None
    status: int = 500
    message: str = "simulated failure"
    after_chunks: int = 0
    after_bytes: int | None = None
    reset: bool = False
    factor: float = 10.0
    paths: tuple[str, ...] = ()

    def hits(self, path: str) -> bool:
        """Return whether requests for this path meet the fault."""
        return path in self.paths or "*" in self.paths if self.paths else path in GENERATING


class _Switch(msgspec.Struct):
    """A fault that is on, for so many requests more."""

    fault: Fault
    left: float


class Faults:
    """The switches of one replica, which sees to their time."""

    def __init__(self) -> None:
        self._switches: dict[Kind, _Switch] = {}

    def set(self, fault: Fault) -> None:
        """Switch one on."""
        left = math.inf if fault.count is None else fault.count
        self._switches[fault.kind] = _Switch(fault, left)

    def clear(self, kind: Kind | None = None) -> None:
        """Switch one off, or all."""
        if kind is None:
            self._switches.clear()
        else:
            self._switches.pop(kind, None)

    def active(self, kind: Kind) -> Fault | None:
        """Return the fault of this kind, if it is on."""
        switch = self._switches.get(kind)
        return switch.fault if switch is not None and switch.left > 0 else None

    def take(self, path: str) -> Fault | None:
        """Return the fault that this request meets, and count it."""
        for kind in PER_REQUEST:
            fault = self.active(kind)
            if fault is not None and fault.hits(path):
                self._switches[kind].left -= 1
                return fault
        return None

    def listed(self) -> list[Fault]:
        """Return the faults that are on."""
        return [switch.fault for switch in self._switches.values() if switch.left > 0]
