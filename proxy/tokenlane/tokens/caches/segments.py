"""The segment cache: a stretch of text between exact cuts -> its ids.

Invariants:
- Keyed by the text itself, so a hit is exact whatever clients send. One cache per model, or rather
  per tokenizer: nothing else changes a stretch's ids.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tokenlane.tokens.caches.lru import PieceCache
from tokenlane.tokens.encode.encoder import Encoder

# Text per step of `stretches`: about 0.1 ms of searching and looking up, and at the usual speeds
# no encode call that holds a thread for long.
_WINDOW_CHARS: Final = 32 * 1024


class SegmentCache(PieceCache[str]):
    """LRU over stretches of text."""


def stretches(
    encoder: Encoder, text: str, at: int, *, words: bool = False, besides: Sequence[int] = ()
) -> Iterator[tuple[list[int], list[str]]]:
    """Yield `text` from `at` on (0, or where a cut is exact), cut wherever that is exact: where
    pieces begin, and the pieces, for about every 32 KiB of it. The ids of all pieces, joined, are
    those of the text. No step takes long, except over a piece that cannot be cut. words: as
    `Encoder.starts`'s. besides: more places where a cut is exact."""
    window = _WINDOW_CHARS
    while at < len(text):
        until = at + window
        bounds = encoder.starts(text, at, until, words=words)
        if besides:
            bounds = sorted({*bounds, *[place for place in besides if at <= place < until]})
        if not bounds or bounds[0] != at:
            bounds.insert(0, at)
        if until >= len(text):
            bounds.append(len(text))
        elif len(bounds) == 1:
            window *= 2
            continue
        pieces = [text[start:end] for start, end in pairwise(bounds)]
        if at == 0:
            pieces[0] = encoder.begun(pieces[0])
        at = bounds.pop()
        yield bounds, pieces
        window = _WINDOW_CHARS
