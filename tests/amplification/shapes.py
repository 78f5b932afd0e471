"""Inputs as shapes: a head, a unit again and again, a tail. What costs much for its bytes mostly
does so by repeating something. Pure, and the same for the same seed."""

import random
from collections.abc import Sequence

import msgspec

COUNT = "<#>"


class Shape(msgspec.Struct, frozen=True):
    """The bytes of each part as Latin-1 text. COUNT in the head becomes how many units follow."""

    head: str
    unit: str
    tail: str

    def bytes_of(self, size: int) -> bytes:
        """As an input of about so many bytes."""
        around = len(self.head) + len(self.tail)
        count = max(1, (size - around) // max(1, len(self.unit)))
        head = self.head.replace(COUNT, count.to_bytes(4, "big").decode("latin-1"))
        return (head + self.unit * count + self.tail).encode("latin-1") or b" "


def shape(head: bytes, unit: bytes, tail: bytes = b"") -> Shape:
    """Of bytes."""
    return Shape(*(part.decode("latin-1") for part in (head, unit, tail)))


def mutated(one: Shape, words: Sequence[bytes], rng: random.Random) -> Shape:
    """One part of it in another way, mostly its unit."""
    name = rng.choices(("unit", "head", "tail"), (8, 2, 1))[0]
    text: str = getattr(one, name)
    word = rng.choice(words).decode("latin-1")
    at = rng.randrange(len(text) + 1)
    to = min(len(text), at + rng.choice((0, 0, 1, 2, 8)))
    made = rng.choice((text[:at] + word + text[to:], text[:at] + text[to:], word, text + text[at:]))
    return msgspec.structs.replace(one, **{name: made[:4096]})
