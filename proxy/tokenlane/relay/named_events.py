"""Streams whose events have names: Anthropic's messages and OpenAI's responses, seen in passing.

Invariants:
- As `tokenlane.relay.sse`: bytes are looked at, never changed; nothing here raises; JSON is decoded
  only from the few events that carry usage.
- A name is taken from the event's first line, where it has one; else from its data's `type`.
- Of an event's data only the first line counts: very many cost no more than one.
- Of an event too long to carry, the name is kept: an end is seen, whatever its length.
"""

from collections.abc import Callable

from tokenlane.protocols.dialects import Dialect
from tokenlane.relay.answer_fields import AnswerUsage, Usage
from tokenlane.relay.sse import EventScanner
from tokenlane.relay.usage import (
    is_aborted,
    named_at_head,
    read_message_usage,
    read_response,
    stopped,
    type_of,
)


class NamedEventScanner(EventScanner):
    """events: seen so far. `done`: the event that ends the dialect's streams was seen. on_made:
    told the name of a response at its beginning, None where it cannot be read."""

    def __init__(
        self, dialect: Dialect, on_made: Callable[[str | None], object] = lambda _: None
    ) -> None:
        super().__init__()
        self._on_made = on_made
        self._dialect = dialect
        self.events = 0
        self._long = b""
        self._first_usage = b""
        self._last_usage = b""
        self._last: AnswerUsage | None = None
        self._usual = b""

    def feed(self, payload: bytes) -> None:
        """Scan the next payload bytes of the stream."""
        if not self._carry and payload.endswith(b"\n\n"):
            usual = self._usual
            if usual and payload.startswith(usual) and payload.find(b"\n\n") == len(payload) - 2:
                # The usual chunk: one event of text.
                self.events += 1
                self.token_events += 1
                return
            self._look(payload)
        else:
            self._split(payload)

    def _too_long(self, head: bytes) -> None:
        """Keep the name of an event too long to carry, and that of a response which it begins."""
        if not self._long:
            self._long = _name_line(head)
            if self._long == b"response.created":
                self._on_made(named_at_head(head))

    def _look(self, events: bytes) -> None:
        """Scan whole events (the first may be the end of one too long to carry)."""
        taken = bool(self._long)
        if taken:
            self._take(self._long, b"")
            self._long = b""
        name = b""
        for line in events.splitlines():
            if not line:
                name, taken = b"", False
            elif line.startswith(b"event:"):
                name = line[6:].strip()
            elif not taken and line.startswith(b"data:"):
                taken = True
                data = line[5:].strip()
                self._take(name or type_of(data), data)

    def _take(self, name: bytes, data: bytes) -> None:
        self.events += 1
        if name == b"error":
            self._error(data)
        elif self._dialect is Dialect.MESSAGES:
            self._take_message(name, data)
        else:
            self._take_response(name, data)

    def _take_message(self, name: bytes, data: bytes) -> None:
        if name == b"content_block_delta":
            self._token(b"event: content_block_delta\n")
        elif name == b"message_start":
            self._first_usage = data
        elif name == b"message_delta":
            self._last_usage = data
            # vLLM gives no finish reason where it stopped for reasons of its own.
            if stopped(data):
                self.tokens_seen = True
            else:
                self.failed = True
        elif name == b"message_stop":
            self.done = True

    def _take_response(self, name: bytes, data: bytes) -> None:
        if name.endswith(b".delta"):
            self._token(b"event: %b\n" % name)
        elif name == b"response.created":
            answer = read_response(data)
            self._on_made(answer.id if answer is not None else None)
        elif name in (b"response.completed", b"response.incomplete", b"response.failed"):
            self.done = True
            answer = self._last = read_response(data)
            # vLLM completes a response that it stopped for reasons of its own: it is `cancelled`.
            if name == b"response.failed" or (answer is not None and is_aborted(answer)):
                self.failed = True
            else:
                self.tokens_seen = True

    def _token(self, usual: bytes) -> None:
        self._usual = usual
        self.tokens_seen = True
        self.token_events += 1

    def usage(self) -> Usage | None:
        """Return the usage that the stream reported. It may decode JSON, so call it once, at the
        end."""
        if self._dialect is Dialect.MESSAGES:
            return read_message_usage(self._first_usage, self._last_usage)
        return self._last.usage if self._last is not None else None


def _name_line(head: bytes) -> bytes:
    """Return the name of the event that begins so."""
    for line in head.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip()
    return b""
