"""Bodies as readers without I/O: bytes in, payload out, and exactly where the message ends.

Invariants:
- `feed` never consumes a byte behind the end of the message.
- A reader is `done` only when it has seen the whole message: a cut is never an end.
- What one `feed` does is bounded, however small the chunks are.
- The chunked grammar is the strict one (RFC 9112 7.1): CRLF only, hex digits only, bounded
  lines and trailers. Trailers are checked and dropped, never merged into headers.
"""

import re
from typing import Final

# An open quote must close: a parser of extensions could otherwise read on behind the line.
_QUOTED: Final = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_SIZE_LINE: Final = re.compile(
    rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;(?:[\t\x20\x21\x23-\x7e\x80-\xff]|" + _QUOTED + rb")*)?"
)
# The size lines of usual chunks, as servers write them.
_SIZES: Final = {
    line: size for size in range(1, 4096) for line in (b"%x\r\n" % size, b"%X\r\n" % size)
}
_CR: Final = 13
_LF: Final = 10
_TRAILER: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_LINE_LIMIT_BYTES: Final = 1024
_TRAILERS_LIMIT_BYTES: Final = 8 * 1024
# A peer chooses how many chunks its bytes are: so many are work for a turn of the loop (0.3 ms).
PIECE_LIMIT_COUNT: Final = 512


class ChunkError(ValueError):
    """The bytes are not a chunked body."""


class BodyReader:
    """Reads one body. done: the message is complete. at_edge: no chunk is half read, so that a
    chunk may be added here. A Protocol would be slower in the compiled build, and every chunk comes
    by here."""

    def __init__(self, *, at_edge: bool, done: bool = False) -> None:
        self.at_edge = at_edge
        self.done = done

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Return the payload in pieces, and how many bytes were consumed: all that belong to the
        message, or those of PIECE_LIMIT_COUNT pieces. Raise ChunkError."""
        raise NotImplementedError


class FixedReader(BodyReader):
    """A body of fixed length, to which nothing can be added. left_bytes: still to come."""

    def __init__(self, length_bytes: int) -> None:
        super().__init__(at_edge=False, done=length_bytes == 0)
        self.left_bytes = length_bytes

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """As BodyReader.feed."""
        size = len(data)
        if size > self.left_bytes:
            size = self.left_bytes
            data = data[:size]
        self.left_bytes -= size
        self.done = self.left_bytes == 0
        return ([data] if data else []), size


class EofReader(BodyReader):
    """A body that ends with its connection: it is never `done` before. Payload is framed again on
    the way out, so every place is an edge."""

    def __init__(self) -> None:
        super().__init__(at_edge=True)

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """As BodyReader.feed."""
        return ([data] if data else []), len(data)


class ChunkedReader(BodyReader):
    """A chunked body. Its state says what comes next: a size line, data, its CRLF, or trailers.

    last_at, trailers_at: where, in the bytes fed last, the last chunk and its trailers began. -1:
    not there (yet); for the last chunk also that it began in bytes before these.
    """

    def __init__(self) -> None:
        super().__init__(at_edge=True)
        self._left = 0
        self._need_crlf = False
        self._in_trailers = False
        self._trailers_bytes = 0
        self._carry = b""
        self._line_bytes = 0
        self.last_at = -1
        self.trailers_at = -1

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """As BodyReader.feed."""
        payload: list[bytes] = []
        at = 0
        size = len(data)
        if self.at_edge:
            # Servers write a chunk at a time, so whole ones are mostly what arrives.
            while True:
                # A line is mostly as long as the one before: to look is a fifth of a search.
                begin = at + self._line_bytes
                length_bytes = _SIZES.get(data[at:begin], 0)
                if not length_bytes:
                    begin = max(data.find(b"\r\n", at, at + 8) + 2, at)
                    self._line_bytes = begin - at
                    length_bytes = _SIZES.get(data[at:begin], 0)
                stop = begin + length_bytes
                if not length_bytes or stop + 2 > size:
                    break
                if data[stop] != _CR or data[stop + 1] != _LF:
                    break
                payload.append(data[begin:stop])
                at = stop + 2
                if at == size or len(payload) == PIECE_LIMIT_COUNT:
                    return payload, at
        self.last_at = -1
        self.trailers_at = 0 if self._in_trailers else -1
        while at < size and not self.done and len(payload) < PIECE_LIMIT_COUNT:
            if self._left:
                piece = data[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._need_crlf = self._left == 0
                continue
            begin = -1 if self._carry else at
            line, at = self._line(data, at)
            if line is not None:
                self._take(line)
                if self._in_trailers and self.trailers_at < 0:
                    self.last_at, self.trailers_at = begin, at
        self.at_edge = not (self._left or self._need_crlf or self._in_trailers or self._carry)
        return payload, at

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return the line that ends behind `at`, without its CRLF, or None while it is incomplete;
        and where the next one begins."""
        end = data.find(b"\n", at)
        if end < 0:
            self._carry += data[at:]
            # A CR in the middle is a bare one, or its line does not end with CRLF.
            if b"\r" in self._carry[:-1] or len(self._carry) > _LINE_LIMIT_BYTES:
                raise ChunkError("chunk line is malformed or too long")
            return None, len(data)
        line = self._carry + data[at : end + 1] if self._carry else data[at : end + 1]
        self._carry = b""
        if len(line) > _LINE_LIMIT_BYTES:
            raise ChunkError("chunk line is too long")
        if line[-2:] != b"\r\n" or b"\r" in line[:-2]:
            raise ChunkError("chunk lines end with CRLF")
        return line[:-2], end + 1

    def _take(self, line: bytes) -> None:
        if self._need_crlf:
            if line:
                raise ChunkError("chunk data is longer than its size")
            self._need_crlf = False
        elif self._in_trailers:
            if not line:
                self.done = True
                return
            self._trailers_bytes += len(line)
            if self._trailers_bytes > _TRAILERS_LIMIT_BYTES or not _TRAILER.fullmatch(line):
                raise ChunkError("trailers are malformed or too long")
        else:
            match = _SIZE_LINE.fullmatch(line)
            if match is None:
                raise ChunkError("chunk size is malformed")
            self._left = int(match.group(1), 16)
            self._in_trailers = self._left == 0


def frame(payload: bytes) -> bytes:
    """Return `payload` as one chunk. It must not be empty: that would end the body."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK: Final = b"0\r\n\r\n"
