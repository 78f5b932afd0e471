"""W3C trace context: reads a client's `traceparent` and writes ours. Pure but for random ids.

Invariants:
- An invalid value starts a new trace; it is never an error and never forwarded.
- A request whose trace is not recorded keeps the header it came with.
"""

import re
from random import getrandbits
from typing import NamedTuple

_VALUE = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LINE = re.compile(rb"^traceparent: [^\r\n]*\r\n", re.MULTILINE)
_SAMPLED = 1


class Parent(NamedTuple):
    """The client's span. sampled: the client records it."""

    trace_id: int
    span_id: int
    sampled: bool


def parse(value: bytes) -> Parent | None:
    """Return the parent that a header names; None where it names none."""
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    parent = Parent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return parent if parent.trace_id and parent.span_id else None


class TraceContext:
    """A request's own span. parent_id: of the client's span, 0 if the trace begins here."""

    __slots__ = ("parent_id", "span_id", "trace_id")

    def __init__(self, parent: Parent | None) -> None:
        self.trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
        self.parent_id = parent.span_id if parent is not None else 0
        self.span_id = getrandbits(64) or 1

    def forwarded(self, lines: bytes) -> bytes:
        """Return a request's header lines with this span as the parent of what the replica does."""
        if b"traceparent: " in lines:
            lines = _LINE.sub(b"", lines)
        return b"%btraceparent: 00-%032x-%016x-01\r\n" % (lines, self.trace_id, self.span_id)
