"""Server-sent events seen in passing: boundaries, and the few events worth decoding.

Invariants:
- Bytes are looked at, never changed, and nothing here raises: what a replica streams is its
  own business. JSON is decoded once, at the end, and only from the events that carry usage.
- `"usage":` with bare quotes cannot stand inside a JSON string (there they are escaped), so a
  byte search finds keys, not text.
- Memory is bounded: of an event longer than the carry limit only its end is kept.
- Each byte is searched once, however small the pieces are.
"""

import re
from typing import Final

from tokenlane.relay.answer_fields import Usage
from tokenlane.relay.usage import is_aborted, is_clients_fault, read_answer, says_something

_CARRY_LIMIT_BYTES: Final = 256 * 1024
# Of longer events none is remembered.
_USUAL_LIMIT_BYTES: Final = 1024
# Where the text of an event begins: a chat's, or a completion's.
_TEXT: Final = re.compile(rb'"(?:content|text)":"')
_BOUNDARIES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
# Bytes of a boundary that may have arrived before the ones that complete it.
_TAIL_BYTES: Final = 3
_NAME_LIMIT_BYTES: Final = 512


class EventScanner:
    """Follows one stream.

    tokens_seen: an event carried generated output. token_events: events since then, a token or
    more each. failed: an `error` event or `finish_reason: "abort"`. refused: an `error` event that
    is the client's fault. done: `[DONE]` was seen, which ends OpenAI's streams.
    """

    def __init__(self) -> None:
        self._carry = bytearray()
        self._usage = b""
        self._steady = False
        self._before = b""
        self._behind = b""
        self.done = False
        self.token_events = 0
        self.failed = False
        self.refused = False
        self.tokens_seen = False

    def feed(self, payload: bytes) -> None:
        """Scan the next payload bytes of the stream."""
        if self._steady:
            if self._is_like_the_first(payload):
                self.token_events += 1
                return
            # `in` takes bytes for a number first, and raises and drops a TypeError.
            if (
                payload.endswith(b"}\n\n")  # a JSON event: [DONE] does not end so
                and payload.find(b'usage"') < 0
                and payload.find(b'"error"') < 0
                and payload.find(b'"abort"') < 0
            ):
                # The usual chunk: whole events with nothing to decode.
                count = payload.count(b"\ndata:") + payload.startswith(b"data:")
                # Among several may be [DONE], though it should be the last.
                if count == 1 or payload.find(b"[DONE]") < 0:
                    self.token_events += count
                    if count == 1 and not self._behind and len(payload) <= _USUAL_LIMIT_BYTES:
                        self._remember(payload)
                    return
        if not self._carry and payload.endswith(b"\n\n"):
            self._look(payload)
        else:
            self._split(payload)
        self._steady = self.tokens_seen and self.at_boundary

    def _is_like_the_first(self, payload: bytes) -> bool:
        """Return whether this is the event remembered, but for its text."""
        before, behind = self._before, self._behind
        end = len(payload) - len(behind)
        if not behind or end < len(before):
            return False
        if not (payload.startswith(before) and payload.endswith(behind)):
            return False
        text = payload[len(before) : end]
        return text.find(b'"') < 0  # so there is no key in it

    def _remember(self, payload: bytes) -> None:
        """Remember what an event has before and behind its text: most others have it, too."""
        found = _TEXT.search(payload)
        end = payload.find(b'"', found.end()) if found is not None else -1
        if found is not None and end >= 0:
            self._before, self._behind = payload[: found.end()], payload[end:]

    @property
    def at_boundary(self) -> bool:
        """The bytes so far end between two events."""
        return not self._carry

    def _split(self, payload: bytes) -> None:
        """Scan payload that does not begin and end on event boundaries: the slow path."""
        carry = self._carry
        begin = max(len(carry) - _TAIL_BYTES, 0)
        carry += payload
        ends = [at + len(mark) for mark in _BOUNDARIES if (at := carry.rfind(mark, begin)) >= 0]
        end = max(ends, default=0)
        if end:
            events = bytes(carry[:end])
            del carry[:end]
            self._look(events)
        if len(carry) > _CARRY_LIMIT_BYTES:
            self._too_long(bytes(carry[:_NAME_LIMIT_BYTES]))
            del carry[:-_TAIL_BYTES]

    def _too_long(self, head: bytes) -> None:
        """Note how an event begins of which only the end will be looked at."""

    def _look(self, events: bytes) -> None:
        """Scan whole events (the first may be the end of one too long to carry)."""
        lines = _data_lines(events)
        if self.tokens_seen:
            self.token_events += sum(map(_may_be_token, lines))
        else:
            self._open(lines)
        if b"[DONE]" in events:
            self.done = self.done or b"[DONE]" in lines
        if b'"error":' in events or b'"abort"' in events:
            for data in lines:
                if data.startswith(b'{"error"'):
                    self._error(data)
                elif _may_abort(data):
                    answer = read_answer(data)
                    self.failed |= answer is not None and is_aborted(answer)
        if b'usage":' in events and (b'usage":{' in events or b'usage": {' in events):
            self._usage = events

    def _error(self, data: bytes) -> None:
        """Note an `error` event."""
        if is_clients_fault(data):
            self.refused = True
        else:
            self.failed = True

    def _open(self, lines: list[bytes]) -> None:
        """Look for the first token, also in and behind an `abort`: it may be the end of text, or
        of one choice of several."""
        for number, data in enumerate(lines):
            if _is_token(data):
                self.tokens_seen = True
                self.token_events = sum(map(_may_be_token, lines[number:]))
                return

    def usage(self) -> Usage | None:
        """Return the last usage the stream carried; decodes, so once, at the end."""
        for data in reversed(_data_lines(self._usage)):
            answer = read_answer(data)
            if answer is not None and answer.usage is not None:
                return answer.usage
        return None


def _may_be_token(data: bytes) -> bool:
    """Return whether an event is neither `[DONE]` nor the final usage, which has no choices."""
    return data != b"[DONE]" and b'"choices":[]' not in data and b'"choices": []' not in data


def _is_token(data: bytes) -> bool:
    """Return whether an event of a stream's beginning carries output, or the end of it. vLLM opens
    a chat with role chunks: they carry no text."""
    if not _may_be_token(data) or data.startswith(b'{"error"'):
        return False
    if b'"role":' in data and b'""' in data and not _finishes(data):
        return False
    return not _may_abort(data) or says_something(data)


def _finishes(data: bytes) -> bool:
    """Return whether an event gives a finish reason."""
    return b'"finish_reason":"' in data or b'"finish_reason": "' in data


def _may_abort(data: bytes) -> bool:
    """Return whether an event is worth decoding for its finish reason."""
    return b'"abort"' in data and b'finish_reason"' in data


def _data_lines(events: bytes) -> list[bytes]:
    """Return the first data of each event. Servers write one line of it; who writes very many gets
    no more of them decoded."""
    lines: list[bytes] = []
    taken = False
    for line in events.splitlines():
        if not line:
            taken = False
        elif not taken and line.startswith(b"data:"):
            taken = True
            lines.append(line[5:].strip())
    return lines
