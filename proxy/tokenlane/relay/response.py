"""An answer on its way from a replica to the client, spliced from protocol to protocol.

Invariants:
- No task and no JSON decode per chunk: the replica's bytes are passed on unchanged, from the
  socket's callback. A byte scan keeps event boundaries; what it finds is decoded once, at the end.
- While nothing was relayed the answer is held back if another replica might do better: until
  the first generated token of a stream, or the whole of a short answer. So an answer that
  generated nothing (503, or `finish_reason: "abort"` first thing) can still be replaced.
- A replica that dies mid-answer never looks like a clean end: an error event on an event
  boundary, then the connection breaks off; anywhere else it just breaks off. A stream that ends
  without the marker its dialect asks for has died, however well framed its end is.
- How far it has come is one of `relay_states.py`, and only its table leads to another.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tokenlane.errors import RequestError, UpstreamError, blames_replica
from tokenlane.http.exchange import Exchange
from tokenlane.http.heads import ResponseHead
from tokenlane.http.upstream import UpstreamConnection
from tokenlane.protocols import dialects
from tokenlane.protocols.dialects import Dialect
from tokenlane.relay import relay_states as states
from tokenlane.relay.answer_fields import Usage
from tokenlane.relay.named_events import NamedEventScanner
from tokenlane.relay.sse import EventScanner
from tokenlane.relay.usage import is_aborted, named_at_head, read_answer, says_something
from tokenlane.routing.retry import Phase
from tokenlane.runtime.clock import monotonic

_HELD_LIMIT_BYTES: Final = 64 * 1024
_READ_LIMIT_BYTES: Final = 256 * 1024


class Relay:
    """Hears one attempt's answer (a ResponseSink) and passes it on to `exchange`.

    dialect: of the answer. lines: the gateway's own header lines. may_retry: hold the answer as
    long as it pays. kept: a 404 says that another replica keeps what the request names. told: it is
    an answer told again, which says nothing of the replica, and whose tokens were counted when it
    was made. marked: a stream that is whole ends as its dialect's do.
    on_computed: called once the prompt is computed: at a stream's first token (vLLM sends its head
    before the prefill) with its time, else at the head with 0.0. on_made: told a response's name
    before the client. state: of relay_states. done: set once it is one of the ends. error: what led
    to a failure. refused: it names the client's fault. Times: time.monotonic() s, 0.0: not reached.
    """

    head: ResponseHead | None = None
    error: UpstreamError | None = None
    usage: Usage | None = None
    aborted = False
    refused = False
    first_byte_s = 0.0
    first_token_s = 0.0
    last_token_s = 0.0
    _scanner: EventScanner | None = None
    _length_bytes: int | None = None
    _held_bytes = 0
    _read_bytes = 0
    _spliced = True
    _said = False

    def __init__(
        self,
        exchange: Exchange,
        connection: UpstreamConnection,
        lines: bytes,
        *,
        dialect: Dialect,
        may_retry: bool,
        kept: bool,
        marked: bool,
        told: bool,
        on_computed: Callable[[float], None],
        on_made: Callable[[str], object] | None,
    ) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._connection = connection
        self._lines = lines
        self._may_retry = may_retry
        self._kept = kept
        self._marked = marked
        self._told = told
        self._on_computed = on_computed
        self._on_made = on_made
        self._splice = exchange.splice
        self.state: int = states.WAITING
        self._held: list[tuple[bytes, list[bytes]]] = []
        self._pieces: list[bytes] = []
        self.done: asyncio.Future[None] = connection.loop.create_future()

    def _on(self, event: int) -> None:
        """Enter the state that an event leads to."""
        self.state = states.AFTER[self.state][event]
        if self.state >= states.COMPLETE and not self.done.done():
            self.done.set_result(None)

    @property
    def token_events(self) -> int:
        """Events with generated output (0 where the answer was not a stream)."""
        return self._scanner.token_events if self._scanner is not None else 0

    # -- ResponseSink ------------------------------------------------------------------------

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take a whole answer at once, the usual case for a short one."""
        self.first_byte_s = monotonic()
        self.head = head
        if len(body) <= _READ_LIMIT_BYTES:
            self._read(body)
        if self._generated_nothing():
            self._pieces.append(body)
            self._on(states.NOTHING)
            return
        self._respond(head, body)
        self._on(states.END)

    def on_head(self, head: ResponseHead, length_bytes: int | None) -> None:
        """Take the head of the answer."""
        self._on(states.HEAD)
        self.first_byte_s = monotonic()
        self.head = head
        self._length_bytes = length_bytes
        if head.stream and head.status == 200 and not self._told:
            chat = self._dialect is Dialect.CHAT
            self._scanner = EventScanner() if chat else NamedEventScanner(self._dialect, self._made)
            if not self._may_retry:
                self._begin()
            return
        self._on_computed(0.0)
        long = length_bytes is None or length_bytes > _HELD_LIMIT_BYTES
        if long and not self._is_held_whole(head.status):
            self._begin()

    def on_body(self, framed: bytes, payload: list[bytes]) -> None:
        """Take more of the body."""
        scanner = self._scanner
        if scanner is not None:
            for piece in payload:
                scanner.feed(piece)
            if self.state == states.FLOWING and not self._connection.ending:  # the usual case
                self.last_token_s = self._connection.heard_s
                self._forward(framed, payload)
                return
            if scanner.tokens_seen:
                self.last_token_s = self._connection.heard_s
                if not self.first_token_s:
                    self.first_token_s = self.last_token_s
                    self._on_computed(self.first_token_s)
                    if self.state == states.HOLDING:
                        self._begin()
        elif self._read_bytes <= _READ_LIMIT_BYTES:
            self._pieces.append(b"".join(payload))  # a one-byte object takes 40
            self._read_bytes += len(framed)
        if self._connection.ending and self._unfinished():
            self._break_off(framed, payload)
            return
        if self.state != states.HOLDING:
            self._forward(framed, payload)
            if self._spliced and self.first_token_s and self.state == states.RELAYING:
                self._on(states.FIRST_TOKEN)
            return
        self._held.append((framed, payload))
        self._held_bytes += len(framed)
        if self._held_bytes > _HELD_LIMIT_BYTES:
            self._begin()

    def on_end(self) -> None:
        """Take the end of the answer, as its framing marks it."""
        assert self.head is not None
        if self.done.done():
            return
        if self.head.endless and self._unfinished():
            self.on_failure(UpstreamError("truncated", sent=True))
            return
        self._read_facts()
        if self.state != states.HOLDING:
            self._exchange.finish(spliced=self._spliced)
        elif self._generated_nothing():
            self._on(states.NOTHING)
            return
        else:
            self._release()
        self._on(states.END)

    def on_failure(self, error: UpstreamError) -> None:
        """Note that the answer will never be complete."""
        self._fail(error, at_edge=self._connection.at_edge)

    def _unfinished(self) -> bool:
        """Return whether a stream is incomplete although its framing has ended. A fixed length is
        its own proof, and an error that the replica reported is a known end."""
        scanner = self._scanner
        return (
            self._marked
            and scanner is not None
            and self._length_bytes is None
            and self.head is not None
            and self.head.status == 200
            and not (scanner.failed or scanner.refused or (scanner.done and scanner.at_boundary))
        )

    def _break_off(self, framed: bytes, payload: list[bytes]) -> None:
        """Pass on the last bytes of a chunked stream that lacks its marker, but not the last chunk,
        which would make half an answer look whole."""
        last_at = self._connection.last_chunk_at if self._spliced else -1
        if self.state != states.HOLDING and (last_at > 0 or not self._spliced):
            self._forward(framed[:last_at], payload)
        self._fail(UpstreamError("truncated", sent=True), at_edge=last_at >= 0)

    def _fail(self, error: UpstreamError, *, at_edge: bool) -> None:
        """Fail. at_edge: a chunk may be added to what the client has."""
        self.error = error
        self._on(states.FAILURE)
        if self.state == states.TRUNCATED:
            self._end_early(dialects.REPLICA_FAILED, at_edge=at_edge)

    def cut(self) -> None:
        """Break the answer off: the gateway stops. Its request is cancelled with its connection."""
        at_edge = self._connection.at_edge
        self._on(states.STOP)
        self._connection.abort(self)
        self._end_early(dialects.GATEWAY_STOPPED, at_edge=at_edge)

    def _end_early(self, why: RequestError, *, at_edge: bool) -> None:
        exchange, scanner = self._exchange, self._scanner
        if scanner is not None and scanner.at_boundary and at_edge:
            events = scanner.events if isinstance(scanner, NamedEventScanner) else 0
            exchange.write(dialects.broken_off(self._dialect, why, exchange.request_id, events))
        # The next request on the replica's connection must not inherit this client's pauses.
        exchange.on_flow = exchange.on_cut = None
        exchange.abort()

    @property
    def failed(self) -> bool:
        """Whether a complete answer reports a failure of the replica."""
        status = self.head.status if self.head is not None else 0
        return self.aborted or (status >= 500 and blames_replica(status))

    def phase(self) -> Phase:
        """Return the phase that a failed attempt had reached, as the retry table names it."""
        if self.state == states.TRUNCATED:
            return Phase.RELAYED
        return Phase.SENT if self.head is None else Phase.HEAD

    def happened(self) -> str:
        """Return what ended a failed attempt, as the retry table names it."""
        if self.error is not None:
            return self.error.reason
        if self.head is not None and self.head.status >= 500:
            return "busy" if self.head.status == 503 else "status"
        if self._kept and self.head is not None and self.head.status == 404:
            return "elsewhere"
        return "empty" if self.state == states.REFUSED else "aborted"

    def release(self, more: bytes = b"") -> None:
        """Send an answer that was held, as no other replica is tried. more: header lines to add."""
        self._lines += more
        self._release()
        self._on(states.END)

    def _release(self) -> None:
        """Send an answer that was held whole."""
        assert self.head is not None
        if self._scanner is None:
            self._held = []
            self._respond(self.head, b"".join(self._pieces))
        else:
            self._begin(live=False)
            self._exchange.finish(spliced=self._spliced)

    def _respond(self, head: ResponseHead, body: bytes) -> None:
        if head.status >= 400 and self._dialect is Dialect.MESSAGES:
            body = dialects.as_messages_error(head.status, body, self._exchange.request_id)
        self._exchange.respond(head.status, head.fields + self._lines, body)

    def _is_held_whole(self, status: int) -> bool:
        """Return whether an answer is held whole: another may replace it, or it is translated."""
        replaceable = status == 503 or (status == 404 and self._kept)
        return replaceable or (status >= 400 and self._dialect is Dialect.MESSAGES)

    def _begin(self, *, live: bool = True) -> None:
        head, exchange, length_bytes = self.head, self._exchange, self._length_bytes
        assert head is not None
        held, self._held = self._held, []
        self._on(states.BEGIN)
        # Chunks are passed through as framed, except to HTTP/1.0, which knows none.
        self._spliced = length_bytes is not None or (head.chunked and exchange.head.minor == 1)
        if live:  # else the replica's connection is idle, or serves another request
            exchange.on_flow = self._connection.pause
            exchange.on_cut = self.cut
        exchange.begin(head.status, head.fields + self._lines, length_bytes=length_bytes)
        self._splice = exchange.splice
        if held:
            framed = b"".join([one for one, _ in held])
            self._forward(framed, [piece for _, payload in held for piece in payload])

    def _forward(self, framed: bytes, payload: list[bytes]) -> None:
        if self._spliced:
            try:
                self._splice(framed)
            except RuntimeError:
                self._splice = _nowhere
        else:
            self._exchange.write(b"".join(payload))

    def _read_facts(self) -> None:
        if self._scanner is not None:
            self.aborted, self.refused = self._scanner.failed, self._scanner.refused
            self.usage = self._scanner.usage()
        elif self._pieces and self._read_bytes <= _READ_LIMIT_BYTES:
            self._read(b"".join(self._pieces))
        elif self._pieces:
            self._made(named_at_head(b"".join([one[:512] for one in self._pieces[:512]])))

    def _made(self, name: str | None) -> None:
        if name and self._on_made is not None and self.head is not None and self.head.status == 200:
            self._on_made(name)

    def _read(self, body: bytes) -> None:
        answer = read_answer(body, self._dialect) if not self._told else None
        if answer is not None:
            self._made(answer.id)
            self.usage = answer.usage
            self.aborted = is_aborted(answer)
            # A replica that reports no token counts may still have generated tokens.
            self._said = (
                self.aborted
                and (answer.usage is None or answer.usage.completion_tokens is None)
                and (self._dialect is not Dialect.CHAT or says_something(body))
            )

    def _generated_nothing(self) -> bool:
        """Return whether it says so, or is a stream that ended before its first token."""
        assert self.head is not None
        status = self.head.status
        if status == 503 or (status == 404 and self._kept):
            return True
        ended_early = self._scanner is not None and status == 200 and not self.first_token_s
        if (not ended_early or self.refused) and (not self.aborted or self._said):
            return False
        return self.usage is None or not self.usage.completion_tokens


def _nowhere(data: bytes) -> None:
    """Drop bytes: the client's transport is closed, and its request is cancelled a turn later."""
