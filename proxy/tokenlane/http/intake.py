"""What a connection reads: a bounded part in each turn of the loop, and nothing while it is held.

Invariants:
- Bytes are parsed in the order they came: nothing is read while some of them wait for their turn.
- A connection parses at most one share of bytes in a turn, and every waiting connection gets one
  share in each turn.
"""

import asyncio
from collections.abc import Callable

from tokenlane.http.turns import TurnQueue


class Intake:
    """The reading of one connection. parse: takes bytes that waited for their turn, as the
    connection takes those that arrive. held: the owner has paused it."""

    __slots__ = ("_in_line", "_parse", "_rest", "_stopped", "_transport", "_turns", "held")

    def __init__(self, turns: TurnQueue, parse: Callable[[bytes], object]) -> None:
        self._turns = turns
        self._parse = parse
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._in_line = False
        self._stopped = False
        self.held = False

    def begin(self, transport: asyncio.Transport) -> None:
        """Start reading: the connection is made."""
        self._transport = transport

    def end(self) -> None:
        """Stop parsing: the connection is lost, or its bytes are no longer of interest."""
        self._rest = b""
        self._transport = None

    def hold(self, held: bool) -> None:
        """Stop reading, or resume."""
        self.held = held
        self._line_up()
        self._apply()

    def later(self, rest: bytes) -> None:
        """Parse the rest of the bytes in a later turn: they are too many for this one."""
        self._rest = rest
        self._line_up()
        self._apply()

    def lose(self) -> None:
        """Parse what waits although the owner paused it: the transport is gone."""
        self._transport = None
        self.held = False
        self._line_up()

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for their turn."""
        return bool(self._rest)

    def drop(self) -> None:
        """Drop the waiting bytes, and resume reading."""
        self._rest = b""
        self.hold(False)

    def _line_up(self) -> None:
        if self._rest and not self.held and not self._in_line:
            self._in_line = True
            self._turns.add(self._take_turn)

    def _take_turn(self) -> None:
        self._in_line = False
        if self.held or not self._rest:
            return
        rest, self._rest = self._rest, b""
        self._parse(rest)
        self._apply()

    def _apply(self) -> None:
        stop = self.held or bool(self._rest)
        transport = self._transport
        if transport is None or stop == self._stopped or transport.is_closing():
            return
        self._stopped = stop
        if stop:
            transport.pause_reading()
        else:
            transport.resume_reading()
