"""The body of the request that a connection is serving: framed, bounded and counted.

Invariants:
- A body takes memory from its head to the end of its request's answer. One that is announced is
  counted whole before it is read, a chunked one as it arrives.
- Once the request is answered, a short rest of its body is read and dropped; a long one is not.
- Framing is bounded by what it frames: a body costs little more to read than it is worth.
"""

from typing import Final

from tokenlane.errors import RequestError, server_error
from tokenlane.http.chunked import BodyReader, ChunkedReader, ChunkError, FixedReader
from tokenlane.http.framing import refusal

DISCARD_LIMIT_BYTES: Final = 64 * 1024
# Bytes of chunk framing that are allowed in addition to a quarter of the payload.
_FRAMING_LIMIT_BYTES: Final = 16 * 1024


class BodyMemory:
    """The memory that bodies may take, all connections of a server together.

    limit_bytes: 0 for any. held_bytes: taken now. short: the process is short of memory, so no
    further body is begun.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.short = False

    def take(self, size_bytes: int, own_bytes: int) -> None:
        """Count `size_bytes` more of a body that holds `own_bytes` already. Raise RequestError 503
        if they do not fit. A body that is larger than the whole limit fits while it is alone."""
        limit_bytes = self.limit_bytes or self.held_bytes + size_bytes
        alone = self.held_bytes <= own_bytes
        fits = own_bytes > 0 if self.short else alone or self.held_bytes + size_bytes <= limit_bytes
        if not fits:
            raise out_of_memory()
        self.held_bytes += size_bytes


class RequestBody:
    """One body after another. reader: None unless there is more of the body to come."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.reader: BodyReader | None = None
        self._received_bytes = 0
        self._framing_bytes = 0
        self._held_bytes = 0

    @property
    def left_bytes(self) -> int:
        """How much is still to come, where the head announced it, else 0."""
        return self.reader.left_bytes if isinstance(self.reader, FixedReader) else 0

    def reserve(self, length_bytes: int, limit_bytes: int) -> None:
        """Take the memory for a body (of unknown length: 0). Raise RequestError 413 or 503."""
        if length_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        self._hold(length_bytes)

    def release(self) -> None:
        """Give the memory back: the request is over."""
        self._memory.held_bytes -= self._held_bytes
        self._held_bytes = 0

    def begin(self, length_bytes: int, begun_bytes: int, *, chunked: bool) -> None:
        """Expect the bytes of a body. begun_bytes: how many came with its head; those of a chunked
        one are yet to be fed."""
        self._framing_bytes = 0
        self._received_bytes = 0 if chunked else begun_bytes
        self.reader = ChunkedReader() if chunked else FixedReader(length_bytes - begun_bytes)

    def begin_discarding(self) -> None:
        """Count from 0 again: the request is answered, and the rest of its body is dropped."""
        self._received_bytes = self._framing_bytes = 0

    def feed(self, data: bytes, limit_bytes: int, *, discard: bool) -> tuple[bytes, int]:
        """Return the payload in `data`, and how many bytes of `data` were read: those that belong
        to the body, or as many as a turn of the loop may read. discard: the payload is dropped.
        Raise RequestError 400, 413 or 503."""
        reader = self.reader
        assert reader is not None
        try:
            pieces, consumed_bytes = reader.feed(data)
        except ChunkError:
            raise refusal("The chunked body is malformed.", "chunked") from None
        # One piece per read: a thousand small chunks are kept as what they carry.
        payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._received_bytes += len(payload)
        self._framing_bytes += consumed_bytes - len(payload)
        if self._framing_bytes > _FRAMING_LIMIT_BYTES + self._received_bytes // 4:
            raise refusal("The chunks are too small, or their extensions too long.", "chunked")
        if discard:
            limit_bytes = DISCARD_LIMIT_BYTES - self._framing_bytes
        elif self._received_bytes > self._held_bytes:  # chunked: its length is not known
            self._hold(self._received_bytes - self._held_bytes)
        if self._received_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        if reader.done:
            self.reader = None
        return payload, consumed_bytes

    def _hold(self, more_bytes: int) -> None:
        self._memory.take(more_bytes, self._held_bytes)
        self._held_bytes += more_bytes


def _too_large(limit_bytes: int) -> RequestError:
    return refusal(f"The body is larger than {limit_bytes} bytes.", "body_too_large", 413)


def out_of_memory() -> RequestError:
    """Return the 503 for a body that exceeds the memory limit."""
    text = "The gateway holds as many requests' bodies as it has memory for."
    return server_error(503, text, "out_of_memory", retry_after_s=1, close=True)
