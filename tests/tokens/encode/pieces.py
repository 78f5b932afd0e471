"""A text cut wherever that is exact, all at once."""

from tokenlane.tokens.encode.encoder import Encoder


def pieces_of(encoder: Encoder, text: str) -> list[str]:
    """The pieces, the first as `begun`; one where no cut is known to be exact; an empty one for
    text "" only."""
    starts = encoder.starts(text)
    if not starts or starts[0] != 0:
        starts.insert(0, 0)
    ends = [*starts[1:], len(text)]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    pieces[0] = encoder.begun(pieces[0])
    return pieces


def ids_of(encoder: Encoder, pieces: list[str], *, add_special_tokens: bool) -> bytes:
    """Their ids joined: equal to `encode` of the whole text."""
    before, after = (encoder.affixes or (b"", b"")) if add_special_tokens else (b"", b"")
    return b"".join((before, *map(encoder.encode_piece, pieces), after))
