"""fastokens as an encoder. It does not do Metaspace: such tokenizers, and those that replace
spaces, it reads in another spelling (`tokenlane.tokens.encode.metaspace`).

Invariants:
- One encode runs on the calling thread alone, without the GIL.
- The owner is told how much of what was encoded fastokens remembers: words, of tokenizers that
  split a text into those.
"""

import os
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from tokenlane.tokens.encode.metaspace import leads, spaced, splits
from tokenlane.tokens.engines import Refused, tried

_LONG_CHARS: Final = 64
# Samples of a text that estimate how much of it is in long words.
_MOST_LOOKS: Final = 4
_CHARS_PER_LOOK: Final = 4096
# Of other text most words are known: it keeps about a character in so many.
_TEXT_PER_KEPT: Final = 8
_BYTE_NAME: Final = "<0x"
# Whatever a tokenizer takes for a word, a word ends at these.
_BREAK: Final = re.compile(r"\s")


def _kept_chars(text: str) -> int:
    """Return about how many characters of the text fastokens keeps: all that is in words longer
    than 64, little of the rest. The samples are few enough to cost nothing compared with
    encoding."""
    size_chars = len(text)
    if size_chars < _LONG_CHARS:
        return size_chars // _TEXT_PER_KEPT
    looks = min(1 + size_chars // _CHARS_PER_LOOK, _MOST_LOOKS)
    step = (size_chars - _LONG_CHARS) // looks
    at, found = step // 2, 0
    for _ in range(looks):
        end = at + _LONG_CHARS
        # Mostly there is a space, which is found sooner than by an expression.
        if text.find(" ", at, end) < 0 and _BREAK.search(text, at, end) is None:
            found += 1
        at += step
    return size_chars * (found * _TEXT_PER_KEPT + looks - found) // (looks * _TEXT_PER_KEPT)


class Flat(Protocol):
    """fastokens' tokenizer, as far as it is used."""

    def encode_batch_flat(
        self, inputs: list[str], add_special_tokens: bool = False
    ) -> tuple[bytes, bytes]: ...


class FastEncoder:
    """Texts to packed ids. Safe to share between threads. on_kept: told by each call about how
    many characters the thread remembers of it. keeps_words: whether it remembers any."""

    def __init__(
        self, tokenizer_json: str, on_kept: Callable[[int], object] = lambda _: None
    ) -> None:
        """Raises Refused."""
        self._on_kept = on_kept
        # Read when the engine first runs; without it one call spreads over all cores.
        os.environ["FASTOKENS_BPE_THREADS"] = "1"
        try:
            from fastokens import Tokenizer  # noqa: PLC0415 - after the variable
        except ImportError as error:
            raise Refused(str(error)) from None
        spec = msgspec.json.decode(tokenizer_json)
        self._leads = leads(spec)
        self.keeps_words = splits(spec)
        # It takes a byte's name, spelled out in a text, for the byte's token.
        self._names_bytes = bool(spec["model"].get("byte_fallback"))
        read = spaced(spec) if self._leads is None else self._leads.spec
        if read is not spec:
            tokenizer_json = msgspec.json.encode(read).decode()
        self._engine: Flat = tried(Tokenizer.from_json_str, tokenizer_json)
        # The first call builds tables; no request should pay for it.
        self.encode(["warm up"], add_special_tokens=True)

    def encode(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes] | None:
        """Return packed ids of each text; None where the engine fails. Raise UnicodeEncodeError."""
        if self._names_bytes and any(_BYTE_NAME in text for text in texts):
            return None
        if self._leads is not None:
            texts = [self._leads.put(text) for text in texts]
        if self.keeps_words:
            kept_chars = 0
            for text in texts:
                kept_chars += _kept_chars(text)
            self._on_kept(kept_chars)
        try:
            ids, bounds = tried(self._engine.encode_batch_flat, texts, add_special_tokens)
        except Refused:
            return None
        if len(texts) == 1:
            return [ids]
        ends = struct.unpack(f"<{len(bounds) // 8}Q", bounds)
        return [ids[start * 4 : end * 4] for start, end in pairwise(ends)]
