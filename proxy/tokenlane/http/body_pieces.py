"""A body as it arrives: what it has in common with a known one is compared and not kept.

Invariants:
- Bytes are compared when they come, while they are in the CPU's caches; no digest is trusted.
- From the first part that is not known on, all is kept unchanged.
- Until then a byte is copied at most once, and those of less than a part are kept.
"""

from collections.abc import Callable

from tokenlane.parts import BODY_PART_BYTES, NAME_BYTES

# A whole part of a known body, by its name and number; None where there is none.
KnownPart = Callable[[bytes, int], bytes | None]


class BodyPieces:
    """The bytes of one body so far. same: its parts that are known. rest: the pieces that follow.
    known_part: None for a body that is not compared."""

    def __init__(self, known_part: KnownPart | None) -> None:
        self._known_part = known_part
        # Of the part that is not whole yet.
        self._begun_bytes = 0
        self.same: list[bytes] = []
        self.rest: list[bytes | memoryview] = []

    @property
    def size_bytes(self) -> int:
        """The bytes so far."""
        return self.rest_bytes + BODY_PART_BYTES * len(self.same)

    @property
    def rest_bytes(self) -> int:
        """Those that no known part stands for."""
        return sum(map(len, self.rest))

    def add(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        known_part = self._known_part
        if known_part is None:
            self.rest.append(piece)
            return
        view, at = memoryview(piece), 0
        while True:
            end = at + BODY_PART_BYTES - self._begun_bytes
            if end > len(view):
                # A copy: the piece may be long, and is gone the sooner.
                self.rest.append(bytes(view[at:]))
                self._begun_bytes += len(view) - at
                return
            begun = b"".join(self.rest)
            name = bytes(view[max(at, end - NAME_BYTES) : end])
            if len(name) < NAME_BYTES:
                name = begun[len(begun) + len(name) - NAME_BYTES :] + name
            part = known_part(name, len(self.same))
            if part is None or not (part.startswith(begun) and part.endswith(view[at:end])):
                self._known_part = None
                self.rest.append(view[at:])
                return
            self.same.append(part)
            self.rest = []
            self._begun_bytes = 0
            at = end
